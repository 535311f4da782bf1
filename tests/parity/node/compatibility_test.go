package node_test

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/meta"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// states reads what we say of ourselves: kind and name to state and note.
func states(t *testing.T, kind string) map[string][2]string {
	t.Helper()
	file, err := os.Open(filepath.Join(fleet.root, "xtask", "compatibility.txt"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close() //nolint:errcheck
	found := map[string][2]string{}
	for scanner := bufio.NewScanner(file); scanner.Scan(); {
		head, note, _ := strings.Cut(scanner.Text(), " | ")
		// Behind the state come the tests that prove it.
		if words := strings.Fields(head); len(words) >= 3 && words[0] == kind {
			found[words[1]] = [2]string{words[2], note}
		}
	}
	return found
}

// untried are calls that do something even without arguments, or that no client may make.
var untried = []string{
	"/Reboot", "/Shutdown", "/Reset", "/Upgrade", "/Rollback", "/MetaWrite", "/MetaDelete", "/PacketCapture",
	"securityapi.", "cosi.resource.State/",
}

func TestEveryCallIsWhatThePageOfCompatibilitySays(t *testing.T) {
	c := connect(t)
	tried := 0
	for name, state := range states(t, "rpc") {
		if skip := func() bool {
			for _, part := range untried {
				if strings.Contains(name, part) {
					return true
				}
			}
			return false
		}(); skip {
			continue
		}
		tried++
		ctx := client.WithNode(timeout(t, patience), fleet.controls[0])
		desc := &grpc.StreamDesc{ServerStreams: true, ClientStreams: strings.HasSuffix(name, "/EtcdRecover")}
		stream, err := connection(c).NewStream(ctx, desc, "/"+name)
		if err == nil {
			err = stream.SendMsg(&emptypb.Empty{})
		}
		if err == nil {
			err = stream.CloseSend()
		}
		if err == nil {
			err = stream.RecvMsg(&emptypb.Empty{})
		}
		missing := status.Code(err) == codes.Unimplemented
		if later := state[0] == "later" || state[0] == "never"; missing != later {
			t.Errorf("%s is said to be %s (%s), and answers %v", name, state[0], state[1], err)
		}
	}
	if tried < 40 {
		t.Errorf("only %d calls tried", tried)
	}
}

// count tells how many resources of a type two nodes have together, a control plane and a worker.
func count(t *testing.T, c *client.Client, definition *meta.ResourceDefinition) int {
	t.Helper()
	found := 0
	for _, node := range []string{fleet.controls[0], fleet.workers[0]} {
		spec := definition.TypedSpec()
		ctx := client.WithNode(timeout(t, patience), node)
		list, err := c.COSI.List(ctx, resource.NewMetadata(spec.DefaultNamespace, spec.Type, "", resource.VersionUndefined))
		if err != nil {
			t.Fatalf("list %s: %v", spec.Type, err)
		}
		found += len(list.Items)
	}
	return found
}

// A type that works and has no note is there on every node, one that comes later nowhere; notes say when the others are.
func TestEveryTypeIsWhatThePageOfCompatibilitySays(t *testing.T) {
	c := connect(t)
	ctx := client.WithNode(timeout(t, patience), fleet.controls[0])
	definitions, err := safe.StateListAll[*meta.ResourceDefinition](ctx, c.COSI)
	if err != nil {
		t.Fatal(err)
	}
	said := states(t, "type")
	if definitions.Len() != len(said) {
		t.Errorf("the node has %d types, the page %d", definitions.Len(), len(said))
	}
	for definition := range definitions.All() {
		name := definition.TypedSpec().Type
		state, found := said[name], count(t, c, definition)
		// Some come a moment after the machine.
		for deadline := time.Now().Add(patience / 4); found == 0 && state[1] == "" && time.Now().Before(deadline) &&
			(state[0] == "same" || state[0] == "better"); found = count(t, c, definition) {
			time.Sleep(200 * time.Millisecond)
		}
		switch {
		case state[0] == "":
			t.Errorf("the page does not have %s", name)
		case state[0] == "later" && found > 0:
			t.Errorf("%s comes later (%s), and there are %d", name, state[1], found)
		case (state[0] == "same" || state[0] == "better") && state[1] == "" && found == 0:
			t.Errorf("%s is said to be there, and is not", name)
		}
	}
}

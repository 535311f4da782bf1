package node_test

import (
	"context"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"unsafe"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
)

// connection gives the client's own connection, which the library keeps to itself.
func connection(c *client.Client) grpc.ClientConnInterface {
	field := reflect.ValueOf(c.MachineClient).Elem().FieldByName("cc")
	return reflect.NewAt(field.Type(), unsafe.Pointer(field.UnsafeAddr())).Elem().Interface().(grpc.ClientConnInterface)
}

// invoke calls a method by its path.
func invoke(ctx context.Context, c *client.Client, path string) error {
	return connection(c).Invoke(ctx, path, &emptypb.Empty{}, &emptypb.Empty{})
}

// recvAll reads a stream to its end.
func recvAll[T any](recv func() (T, error)) ([]T, error) {
	var all []T
	for {
		message, err := recv()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		all = append(all, message)
	}
}

func TestReadStreamsAFile(t *testing.T) {
	c := connect(t)
	reader, err := c.Read(client.WithNode(timeout(t, patience), fleet.workers[0]), "/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(reader)
	if err != nil || len(strings.TrimSpace(string(data))) != 36 {
		t.Errorf("boot id: %q %v", data, err)
	}
}

func TestListWalksADirectory(t *testing.T) {
	c := connect(t)
	ctx := client.WithNodes(timeout(t, patience), fleet.controls...)
	stream, err := c.LS(ctx, &machine.ListRequest{Root: "/usr", Recurse: true, RecursionDepth: 2})
	if err != nil {
		t.Fatal(err)
	}
	entries, err := recvAll(stream.Recv)
	if err != nil {
		t.Fatal(err)
	}
	hosts := map[string]int{}
	for _, entry := range entries {
		if entry.GetMetadata().GetError() != "" {
			t.Errorf("entry with an error: %v", entry)
		}
		hosts[entry.GetMetadata().GetHostname()]++
	}
	for _, node := range fleet.controls {
		if hosts[node] < 3 {
			t.Errorf("%d entries of %s", hosts[node], node)
		}
	}
}

func TestLogsFollowAndTail(t *testing.T) {
	c := connect(t)
	ctx := client.WithNode(timeout(t, patience), fleet.controls[0])

	stream, err := c.Logs(ctx, "system", common.ContainerDriver_CONTAINERD, "machined", false, -1)
	if err != nil {
		t.Fatal(err)
	}
	chunks, err := recvAll(stream.Recv)
	if err != nil || len(chunks) == 0 {
		t.Fatalf("logs: %d chunks, %v", len(chunks), err)
	}

	follow, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err = c.Logs(follow, "system", common.ContainerDriver_CONTAINERD, "machined", true, 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatalf("follow: %v", err)
	}
	cancel()

	stream, err = c.Logs(ctx, "system", common.ContainerDriver_CONTAINERD, "no-such-log", false, -1)
	if err == nil {
		_, err = recvAll(stream.Recv)
	}
	if err == nil || !strings.Contains(err.Error(), "not registered") {
		t.Errorf("unknown log: %v", err)
	}
}

func TestDmesgOfSeveralNodes(t *testing.T) {
	c := connect(t)
	stream, err := c.Dmesg(client.WithNodes(timeout(t, patience), everyNode()...), false, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := recvAll(stream.Recv); err != nil {
		t.Errorf("dmesg: %v", err)
	}
}

func TestEventsHaveAHistory(t *testing.T) {
	c := connect(t)
	ctx, cancel := context.WithCancel(client.WithNode(timeout(t, patience), fleet.controls[0]))
	defer cancel()
	seen := map[string]bool{}
	err := c.EventsWatch(ctx, func(events <-chan client.Event) {
		for event := range events {
			switch payload := event.Payload.(type) {
			case *machine.SequenceEvent:
				seen["sequence:"+payload.GetSequence()] = true
			case *machine.ServiceStateEvent:
				seen["service:"+payload.GetService()] = true
			case *machine.MachineStatusEvent:
				seen["stage:"+payload.GetStage().String()] = true
			}
			if seen["sequence:boot"] && seen["service:apid"] && seen["stage:RUNNING"] {
				cancel()
			}
		}
	}, client.WithTailEvents(-1))
	if err != nil && !errors.Is(err, context.Canceled) && !strings.Contains(err.Error(), "Canceled") {
		t.Errorf("events: %v", err)
	}
	for _, want := range []string{"sequence:boot", "service:apid", "stage:RUNNING"} {
		if !seen[want] {
			t.Errorf("no %s in %v", want, seen)
		}
	}
}

func TestCopyGivesATar(t *testing.T) {
	c := connect(t)
	reader, err := c.Copy(client.WithNode(timeout(t, patience), fleet.controls[0]), "/etc")
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(reader)
	if err != nil || len(data) < 20 || data[0] != 0x1f || data[1] != 0x8b {
		t.Errorf("copy: %d bytes, %v", len(data), err)
	}
}

package node_test

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/blang/semver/v4"
	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"
)

func TestVersionOfOneNode(t *testing.T) {
	c := connect(t)
	for _, node := range everyNode() {
		reply, err := c.Version(client.WithNode(timeout(t, patience), node))
		if err != nil {
			t.Fatalf("%s: %v", node, err)
		}
		if len(reply.GetMessages()) != 1 {
			t.Fatalf("%s: %d messages", node, len(reply.GetMessages()))
		}
		if _, err := semver.ParseTolerant(reply.GetMessages()[0].GetVersion().GetTag()); err != nil {
			t.Errorf("%s: tag: %v", node, err)
		}
		if !reply.GetMessages()[0].GetFeatures().GetRbac() {
			t.Errorf("%s: RBAC is off", node)
		}
	}
}

func TestVersionOfSeveralNodesThroughOneEndpoint(t *testing.T) {
	c := connect(t)
	reply, err := c.Version(client.WithNodes(timeout(t, patience), everyNode()...))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, message := range reply.GetMessages() {
		seen[message.GetMetadata().GetHostname()] = true
	}
	for _, node := range everyNode() {
		if !seen[node] {
			t.Errorf("no answer of %s in %v", node, seen)
		}
	}
}

func TestANodeThatIsNotThereFailsAlone(t *testing.T) {
	c := connect(t)
	reply, err := c.Version(client.WithNodes(timeout(t, patience), fleet.controls[0], "10.77.0.200"))
	if err == nil {
		t.Fatal("no error for the missing node")
	}
	if !strings.Contains(err.Error(), "10.77.0.200") {
		t.Errorf("the error does not name the node: %v", err)
	}
	if len(reply.GetMessages()) != 1 || reply.GetMessages()[0].GetMetadata().GetHostname() != fleet.controls[0] {
		t.Errorf("the healthy node is missing: %v", reply)
	}
}

func TestUnaryCallsOfTheSpine(t *testing.T) {
	c := connect(t)
	ctx := client.WithNode(timeout(t, patience), fleet.controls[0])

	if reply, err := c.Memory(ctx); err != nil || reply.GetMessages()[0].GetMeminfo().GetMemtotal() == 0 {
		t.Errorf("memory: %v %v", reply, err)
	}
	if reply, err := c.Mounts(ctx); err != nil || len(reply.GetMessages()[0].GetStats()) == 0 {
		t.Errorf("mounts: %v %v", reply, err)
	}
	if reply, err := c.Processes(ctx); err != nil || len(reply.GetMessages()[0].GetProcesses()) == 0 {
		t.Errorf("processes: %v %v", reply, err)
	}
	if reply, err := c.MachineClient.Hostname(ctx, &emptypb.Empty{}); err != nil || reply.GetMessages()[0].GetHostname() == "" {
		t.Errorf("hostname: %v %v", reply, err)
	}
	if reply, err := c.LogsContainers(ctx); err != nil || len(reply.GetMessages()[0].GetIds()) == 0 {
		t.Errorf("logs containers: %v %v", reply, err)
	}
	services, err := c.ServiceList(ctx)
	if err != nil {
		t.Fatalf("services: %v", err)
	}
	states := map[string]string{}
	for _, service := range services.GetMessages()[0].GetServices() {
		states[service.GetId()] = service.GetState()
	}
	for _, id := range []string{"machined", "apid", "trustd"} {
		if states[id] != "Running" {
			t.Errorf("service %s is %q in %v", id, states[id], states)
		}
	}
}

func TestServicesOfMachinedCannotBeStopped(t *testing.T) {
	c := connect(t)
	ctx := client.WithNode(timeout(t, patience), fleet.controls[0])
	if _, err := c.ServiceStop(ctx, "machined"); err == nil || !strings.Contains(err.Error(), "doesn't support") {
		t.Errorf("stop machined: %v", err)
	}
	if _, err := c.ServiceStart(ctx, "no-such-service"); err == nil {
		t.Error("a service that does not exist was started")
	}
}

func TestStatusCodes(t *testing.T) {
	c := connect(t)
	here := client.WithNode(timeout(t, patience), fleet.controls[0])

	reader, err := c.GenerateClientConfiguration(here, &machine.GenerateClientConfigurationRequest{
		Roles: role.MakeSet(role.Reader).Strings(), CrtTtl: durationpb.New(time.Hour),
	})
	if err != nil {
		t.Fatalf("generate client configuration: %v", err)
	}
	config, err := clientconfig.FromBytes(reader.GetMessages()[0].GetTalosconfig())
	if err != nil {
		t.Fatal(err)
	}
	asReader, err := client.New(t.Context(), client.WithConfig(config), client.WithEndpoints(c.GetEndpoints()...))
	if err != nil {
		t.Fatal(err)
	}
	defer asReader.Close() //nolint:errcheck

	if _, err := asReader.Version(here); err != nil {
		t.Errorf("a reader may ask for the version: %v", err)
	}
	for _, node := range []string{fleet.controls[0], fleet.controls[1], fleet.workers[0]} {
		ctx := client.WithNode(timeout(t, patience), node)
		if err := asReader.Reboot(ctx); status.Code(err) != codes.PermissionDenied {
			t.Errorf("reboot of %s by a reader: %v", node, err)
		}
		stream, err := asReader.Read(ctx, "/proc/version")
		if err == nil {
			_, err = io.ReadAll(stream)
		}
		if status.Code(err) != codes.PermissionDenied {
			t.Errorf("read on %s by a reader: %v", node, err)
		}
	}

	worker := client.WithNode(timeout(t, patience), fleet.workers[0])
	_, err = c.GenerateClientConfiguration(worker, &machine.GenerateClientConfigurationRequest{
		Roles: []string{"os:reader"}, CrtTtl: durationpb.New(time.Hour),
	})
	if status.Code(err) != codes.FailedPrecondition {
		t.Errorf("client configuration from a worker: %v", err)
	}
	if _, err = c.EtcdMemberList(worker, &machine.EtcdMemberListRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("etcd members of a worker: %v", err)
	}
	stream, err := c.Read(here, "/no/such/file")
	if err == nil {
		_, err = io.ReadAll(stream)
	}
	if status.Code(err) != codes.NotFound {
		t.Errorf("read of a missing file: %v", err)
	}
	if _, err = c.ApplyConfiguration(here, &machine.ApplyConfigurationRequest{Data: []byte("version: v1alpha1\nmachine: [")}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("apply of a broken configuration: %v", err)
	}
	if _, err = c.Containers(here, "system", common.ContainerDriver_CONTAINERD); err == nil {
		t.Log("containers answered") // no container runtime on these machines yet; any precise error will do
	}
}

func TestTheResponseToAnUnknownMethodIsUnimplemented(t *testing.T) {
	c := connect(t)
	ctx := client.WithNode(timeout(t, patience), fleet.controls[0])
	// The deprecated call that the original dropped long ago: nobody serves it.
	err := invoke(ctx, c, "/machine.MachineService/NoSuchMethod")
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("unknown method: %v", err)
	}
	err = invoke(ctx, c, "/no.such.Service/Method")
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("unknown service: %v", err)
	}
}

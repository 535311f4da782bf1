package node_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/meta"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/resources/secrets"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestEveryDefinitionIsListed(t *testing.T) {
	c := connect(t)
	ctx := client.WithNode(timeout(t, patience), fleet.controls[0])
	list, err := safe.StateListAll[*meta.ResourceDefinition](ctx, c.COSI)
	if err != nil {
		t.Fatal(err)
	}
	if list.Len() < 160 {
		t.Errorf("%d definitions", list.Len())
	}
}

func TestTypedReadsOnEveryNode(t *testing.T) {
	c := connect(t)
	for _, node := range everyNode() {
		ctx := client.WithNode(timeout(t, patience), node)
		eventually(t, node, func() error {
			hostname, err := safe.StateGetByID[*network.HostnameStatus](ctx, c.COSI, network.HostnameID)
			if err != nil || hostname.TypedSpec().Hostname == "" {
				return fmt.Errorf("hostname: %v %w", hostname, err)
			}
			addresses, err := safe.StateGetByID[*network.NodeAddress](ctx, c.COSI, network.NodeAddressDefaultID)
			if err != nil || len(addresses.TypedSpec().Addresses) == 0 || addresses.TypedSpec().Addresses[0].Addr().String() != node {
				return fmt.Errorf("default address: %v %w", addresses, err)
			}
			machineStatus, err := safe.StateGetByID[*runtime.MachineStatus](ctx, c.COSI, runtime.MachineStatusID)
			if err != nil || machineStatus.TypedSpec().Stage != runtime.MachineStageRunning {
				return fmt.Errorf("machine status: %v %w", machineStatus, err)
			}
			kind, err := safe.StateGetByID[*config.MachineType](ctx, c.COSI, config.MachineTypeID)
			if err != nil {
				return fmt.Errorf("machine type: %v %w", kind, err)
			}
			links, err := safe.StateListAll[*network.LinkStatus](ctx, c.COSI)
			if err != nil || links.Len() < 2 {
				return fmt.Errorf("links: %v %w", links, err)
			}
			return nil
		})
	}
}

func TestTheMachineConfigurationLoadsAndValidates(t *testing.T) {
	c := connect(t)
	for _, node := range everyNode() {
		ctx := client.WithNode(timeout(t, patience), node)
		mc, err := safe.StateGetByID[*config.MachineConfig](ctx, c.COSI, config.ActiveID)
		if err != nil {
			t.Fatalf("%s: %v", node, err)
		}
		if _, err := mc.Provider().Validate(containerMode{}); err != nil {
			t.Errorf("%s: validate: %v", node, err)
		}
	}
}

// containerMode is a runtime mode that asks for no install disk.
type containerMode struct{}

func (containerMode) String() string        { return "cloud" }
func (containerMode) RequiresInstall() bool { return false }
func (containerMode) InContainer() bool     { return false }

func TestWatchStartsWithTheContents(t *testing.T) {
	c := connect(t)
	ctx := client.WithNode(timeout(t, patience), fleet.controls[0])
	events := make(chan state.Event)
	kind := resource.NewMetadata(network.NamespaceName, network.LinkStatusType, "", resource.VersionUndefined)
	if err := c.COSI.WatchKind(ctx, kind, events, state.WithBootstrapContents(true)); err != nil {
		t.Fatal(err)
	}
	links := 0
	for {
		event := <-events
		switch event.Type {
		case state.Created:
			links++
			continue
		case state.Bootstrapped:
		default:
			t.Fatalf("event %v before the contents were complete", event)
		}
		break
	}
	if links < 2 {
		t.Errorf("%d links", links)
	}
}

func TestSecretsAreForAdministratorsAndWritesForNobody(t *testing.T) {
	c := connect(t)
	ctx := client.WithNode(timeout(t, patience), fleet.controls[0])
	if _, err := safe.StateGetByID[*secrets.OSRoot](ctx, c.COSI, secrets.OSRootID); err != nil {
		t.Errorf("root secrets for an administrator: %v", err)
	}
	err := c.COSI.Create(ctx, network.NewHostnameSpec(network.NamespaceName, "x"))
	// The client wraps this one so that only its text tells the code.
	if err == nil || !strings.Contains(err.Error(), "code = PermissionDenied") {
		t.Errorf("create: %v", err)
	}
	_, err = c.COSI.Get(ctx, resource.NewMetadata("network", "NoSuchTypes.net.talos.dev", "x", resource.VersionUndefined))
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("unknown type: %v", err)
	}
	_, err = c.COSI.Get(ctx, resource.NewMetadata(network.NamespaceName, network.HostnameStatusType, "x", resource.VersionUndefined))
	if !state.IsNotFoundError(err) {
		t.Errorf("missing resource: %v", err)
	}
}

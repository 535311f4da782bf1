package node_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/configpatcher"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"
	"google.golang.org/protobuf/types/known/durationpb"
)

// patched gives the node's active configuration with one sysctl set.
func patched(t *testing.T, ctx context.Context, c *client.Client, value string) []byte {
	t.Helper()
	mc, err := safe.StateGetByID[*config.MachineConfig](ctx, c.COSI, config.ActiveID)
	if err != nil {
		t.Fatal(err)
	}
	patch, err := configpatcher.LoadPatch([]byte("machine:\n  sysctls:\n    net.ipv4.ip_forward: \"" + value + "\"\n"))
	if err != nil {
		t.Fatal(err)
	}
	out, err := configpatcher.Apply(configpatcher.WithConfig(mc.Provider()), []configpatcher.Patch{patch})
	if err != nil {
		t.Fatal(err)
	}
	data, err := out.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func sysctl(t *testing.T, ctx context.Context, c *client.Client) string {
	t.Helper()
	mc, err := safe.StateGetByID[*config.MachineConfig](ctx, c.COSI, config.ActiveID)
	if err != nil {
		t.Fatal(err)
	}
	return mc.Config().Machine().Sysctls()["net.ipv4.ip_forward"]
}

func TestADryRunShowsTheDiffAndChangesNothing(t *testing.T) {
	c := connect(t)
	ctx := client.WithNode(timeout(t, patience), fleet.workers[0])
	before := sysctl(t, ctx, c)
	reply, err := c.ApplyConfiguration(ctx, &machine.ApplyConfigurationRequest{
		Data: patched(t, ctx, c, "7"), Mode: machine.ApplyConfigurationRequest_NO_REBOOT, DryRun: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(reply.GetMessages()[0].GetModeDetails(), "ip_forward") {
		t.Errorf("no diff in %q", reply.GetMessages()[0].GetModeDetails())
	}
	if after := sysctl(t, ctx, c); after != before {
		t.Errorf("a dry run changed the configuration: %q", after)
	}
}

func TestTryReturnsByItself(t *testing.T) {
	c := connect(t)
	ctx := client.WithNode(timeout(t, 2*patience), fleet.workers[0])
	before := sysctl(t, ctx, c)
	_, err := c.ApplyConfiguration(ctx, &machine.ApplyConfigurationRequest{
		Data: patched(t, ctx, c, "1"), Mode: machine.ApplyConfigurationRequest_TRY, TryModeTimeout: durationpb.New(20 * time.Second),
	})
	if err != nil {
		t.Fatal(err)
	}
	if now := sysctl(t, ctx, c); now != "1" {
		t.Errorf("the tried configuration is not active: %q", now)
	}
	deadline := time.Now().Add(patience)
	for sysctl(t, ctx, c) != before {
		if time.Now().After(deadline) {
			t.Fatal("the tried configuration stayed")
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func TestNoRebootAppliesAtOnce(t *testing.T) {
	c := connect(t)
	ctx := client.WithNode(timeout(t, patience), fleet.workers[0])
	reply, err := c.ApplyConfiguration(ctx, &machine.ApplyConfigurationRequest{
		Data: patched(t, ctx, c, "1"), Mode: machine.ApplyConfigurationRequest_AUTO,
	})
	if err != nil {
		t.Fatal(err)
	}
	if mode := reply.GetMessages()[0].GetMode(); mode != machine.ApplyConfigurationRequest_NO_REBOOT {
		t.Errorf("auto chose %v", mode)
	}
	if now := sysctl(t, ctx, c); now != "1" {
		t.Errorf("not active: %q", now)
	}
}

func bootID(ctx context.Context, c *client.Client) (string, error) {
	reader, err := c.Read(ctx, "/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	data, err := io.ReadAll(reader)
	return strings.TrimSpace(string(data)), err
}

func TestAWorkerRebootsAndKeepsItsConfiguration(t *testing.T) {
	c := connect(t)
	ctx := client.WithNode(timeout(t, 3*patience), fleet.workers[0])
	before, err := bootID(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	reply, err := c.RebootWithResponse(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if reply.GetMessages()[0].GetActorId() == "" {
		t.Error("no actor id")
	}
	for {
		if after, err := bootID(ctx, c); err == nil && after != before {
			break
		}
		if ctx.Err() != nil {
			t.Fatal("the worker did not come back")
		}
		time.Sleep(100 * time.Millisecond)
	}
	// The client's watch ends with its context, not with the function that reads it.
	watching, seen := context.WithCancel(ctx)
	defer seen()
	err = c.EventsWatch(watching, func(events <-chan client.Event) {
		for event := range events {
			status, ok := event.Payload.(*machine.MachineStatusEvent)
			if ok && status.GetStage() == machine.MachineStatusEvent_RUNNING && status.GetStatus().GetReady() {
				seen()
				return
			}
		}
	}, client.WithTailEvents(-1))
	if err != nil && !errors.Is(err, context.Canceled) && !strings.Contains(err.Error(), "Canceled") {
		t.Errorf("wait for running: %v", err)
	}
}

func TestAClientOfAnotherClusterIsTurnedAway(t *testing.T) {
	dir := t.TempDir()
	if out, err := ichorctl(patience, "gen", "config", "other", "https://10.77.0.2:6443", "--output", dir); err != nil {
		t.Fatalf("gen config: %v: %s", err, out)
	}
	for _, file := range []string{"controlplane.yaml", "worker.yaml"} {
		provider, err := configloader.NewFromFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if _, err := provider.Validate(containerMode{}); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "talosconfig")); err != nil {
		t.Fatal(err)
	}
	endpoints := connect(t).GetEndpoints()
	stranger, err := client.New(t.Context(), client.WithConfigFromFile(filepath.Join(dir, "talosconfig")),
		client.WithEndpoints(endpoints...))
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close() //nolint:errcheck
	if _, err := stranger.Version(timeout(t, patience)); err == nil {
		t.Error("a client of another cluster was let in")
	}
	bare, err := client.New(t.Context(), client.WithTLSConfig(&tls.Config{InsecureSkipVerify: true}), //nolint:gosec
		client.WithEndpoints(endpoints...))
	if err != nil {
		t.Fatal(err)
	}
	defer bare.Close() //nolint:errcheck
	if _, err := bare.Version(timeout(t, patience)); err == nil {
		t.Error("a client without a certificate was let in")
	}
}

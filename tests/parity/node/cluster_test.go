// Package node_test lets the original's published client library judge our nodes.
package node_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/client"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
)

// fleet is the one cluster that all tests of the package share.
var fleet struct {
	name        string
	root        string
	home        string
	talosconfig string
	controls    []string
	workers     []string
}

// patience bounds every step: what takes a moment on a quiet machine may take long on a busy one.
const patience = 2 * time.Minute

const (
	controls = 2
	workers  = 1
)

func TestMain(m *testing.M) {
	os.Exit(func() int {
		if err := setUp(); err != nil {
			fmt.Fprintln(os.Stderr, "set up the cluster:", err)
			tearDown()
			return 1
		}
		defer tearDown()
		return m.Run()
	}())
}

func setUp() error {
	fleet.root = os.Getenv("ICHOR_ROOT")
	if fleet.root == "" {
		return fmt.Errorf("ICHOR_ROOT is not set; run `make test-parity`")
	}
	home, err := os.MkdirTemp("", "ichor-parity")
	if err != nil {
		return err
	}
	fleet.home = home
	fleet.name = fmt.Sprintf("parity-%d", os.Getpid())
	fleet.talosconfig = filepath.Join(home, ".talos", "config")

	if out, err := ichorctl(10*time.Minute, "cluster", "create", "--name", fleet.name, "--cidr", "10.77.0.0/24",
		"--controlplanes", fmt.Sprint(controls), "--workers", fmt.Sprint(workers)); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	for i := range controls {
		fleet.controls = append(fleet.controls, fmt.Sprintf("10.77.0.%d", 2+i))
	}
	for i := range workers {
		fleet.workers = append(fleet.workers, fmt.Sprintf("10.77.0.%d", 2+controls+i))
	}
	// Every machine is asked through the first one, as the tests do.
	var out string
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		if out, err = ichorctl(patience, "-n", strings.Join(everyNode(), ","), "version"); err == nil {
			return nil
		}
	}
	return fmt.Errorf("the machines do not answer: %w: %s", err, out)
}

// eventually tries until there is no problem any more, and tells the last one otherwise.
func eventually(t *testing.T, what string, attempt func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if err = attempt(); err == nil {
			return
		}
	}
	t.Errorf("%s: %v", what, err)
}

func tearDown() {
	if fleet.home == "" {
		return
	}
	if out, err := ichorctl(5*time.Minute, "cluster", "destroy", "--name", fleet.name); err != nil {
		fmt.Fprintf(os.Stderr, "destroy the cluster: %v: %s\n", err, out)
	}
	_ = os.RemoveAll(fleet.home)
}

// ichorctl runs our client with the fleet's home directory.
func ichorctl(timeout time.Duration, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(fleet.root, "bin", "ichorctl"), args...)
	cmd.Env = append(os.Environ(), "HOME="+fleet.home, "TALOSCONFIG="+fleet.talosconfig)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func everyNode() []string {
	return append(append([]string{}, fleet.controls...), fleet.workers...)
}

// connect gives a client of the first control plane, as the talosconfig says.
func connect(t *testing.T) *client.Client {
	t.Helper()
	config, err := clientconfig.Open(fleet.talosconfig)
	if err != nil {
		t.Fatalf("open talosconfig: %v", err)
	}
	c, err := client.New(t.Context(), client.WithConfig(config), client.WithDefaultGRPCDialOptions())
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func timeout(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

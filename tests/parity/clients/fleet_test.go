// Package clients_test compares ichorctl with the original client, command by command, against the same nodes.
//
// With the path of an original client in TALOSCTL both are run and everything they print and return is compared.
// Without it the expectations in testdata stand in; `go test ./clients -update` writes them from the original.
package clients_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the expectations anew from the client in TALOSCTL")

const (
	controlPlane = "10.78.0.2"
	worker       = "10.78.0.3"
	// No machine has this address.
	nobody = "10.78.0.77"
)

// fleet is the one cluster that all tests of the package share: a control plane machine and a worker.
var fleet struct {
	name        string
	root        string
	home        string
	talosconfig string
	original    string
}

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(func() int {
		defer tearDown()
		if err := setUp(); err != nil {
			fmt.Fprintln(os.Stderr, "set up the cluster:", err)
			return 1
		}
		return m.Run()
	}())
}

func setUp() error {
	fleet.root = os.Getenv("ICHOR_ROOT")
	if fleet.root == "" {
		return errors.New("ICHOR_ROOT is not set; run `make test-parity`")
	}
	fleet.original = os.Getenv("TALOSCTL")
	if *update && fleet.original == "" {
		return errors.New("-update needs an original client in TALOSCTL")
	}
	home, err := os.MkdirTemp("", "ichor-clients")
	if err != nil {
		return err
	}
	fleet.home = home
	fleet.name = fmt.Sprintf("clients-%d", os.Getpid())
	fleet.talosconfig = filepath.Join(home, ".talos", "config")
	made := ours().run(10*time.Minute, "cluster", "create", "--name", fleet.name, "--cidr", "10.78.0.0/24",
		"--controlplanes", "1", "--workers", "1")
	if made.status != 0 {
		return fmt.Errorf("exit status %d: %s", made.status, made.stderr)
	}
	// What is compared needs machines that answer, not a cluster that is complete.
	var last outcome
	for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		last = ours().run(time.Minute, "-n", controlPlane+","+worker, "get", "machinestatus", "-o", "jsonpath={.spec.stage}")
		if last.status == 0 && strings.Count(last.stdout, "running") == 2 {
			return nil
		}
	}
	return fmt.Errorf("the machines do not run: %s%s", last.stdout, last.stderr)
}

func tearDown() {
	if fleet.home == "" {
		return
	}
	if gone := ours().run(5*time.Minute, "cluster", "destroy", "--name", fleet.name); gone.status != 0 {
		fmt.Fprintf(os.Stderr, "destroy the cluster: %s\n", gone.stderr)
	}
	_ = os.RemoveAll(fleet.home)
}

// client is a program that speaks the machine API.
type client struct {
	name string
	path string
}

func ours() client   { return client{"ichorctl", filepath.Join(fleet.root, "bin", "ichorctl")} }
func theirs() client { return client{"talosctl", fleet.original} }

// outcome is what a run left behind.
type outcome struct {
	status int
	stdout string
	stderr string
}

// run calls the client in the fleet's home directory. A run that outlives its time is interrupted, as Ctrl-C does.
func (c client) run(limit time.Duration, args ...string) outcome {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.path, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = 30 * time.Second
	cmd.Dir = fleet.home
	cmd.Env = append(os.Environ(), "HOME="+fleet.home, "TALOSCONFIG="+fleet.talosconfig, "TZ=UTC", "KUBECONFIG=")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	status := 0
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		status = exit.ExitCode()
	case err != nil:
		status = -1
		fmt.Fprintf(&stderr, "run %s: %v", c.path, err)
	}
	return outcome{status, stdout.String(), stderr.String()}
}

// words splits a command line; nothing in these tests needs quotes beyond single ones around a word.
func words(line string) []string {
	fields := strings.Fields(line)
	for i, field := range fields {
		fields[i] = strings.Trim(field, "'")
	}
	return fields
}

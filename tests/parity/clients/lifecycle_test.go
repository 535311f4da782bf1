package clients_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// action is a command that ends, wipes or changes a machine, so every client gets a machine of its own for it.
type action struct {
	name string
	line string
	// status is what both clients return.
	status int
	// says are words that both clients print while they follow the machine; never are words that neither does.
	says  []string
	never []string
	// left is a word of what `cluster show` tells of the machine afterwards.
	left string
	// after is a call that the machine answers afterwards, if there is one.
	after string
}

const (
	alone    = "10.86.0.2"
	loopback = "127.86.0.2"
)

var actions = []action{
	{
		name: "shutdown", line: "shutdown --timeout 5m", left: "stopped",
		says: []string{"actor ID: ", "events check condition met"}, never: []string{"Unimplemented"},
	},
	{
		name: "shutdown-no-wait", line: "shutdown --wait=false", left: "stopped",
		never: []string{"events check condition met", "Unimplemented"},
	},
	{
		name: "shutdown-force", line: "shutdown --force --timeout 5m", left: "stopped",
		says: []string{"actor ID: ", "events check condition met"}, never: []string{"Unimplemented"},
	},
	{
		name: "reset-ephemeral", line: "reset --graceful=false --reboot --timeout 5m --system-labels-to-wipe EPHEMERAL", left: "running",
		says: []string{"actor ID: ", "events check condition met"}, never: []string{"Unimplemented"},
		after: "-e " + loopback + " -n " + alone + " version",
	},
	{
		name: "reset-all", line: "reset --graceful=false --reboot --wait=false --system-labels-to-wipe EPHEMERAL,STATE", left: "running",
		never: []string{"events check condition met", "Unimplemented"},
		// The sandbox gives it its configuration again.
		after: "-e " + loopback + " -n " + alone + " version",
	},
	{
		// Machines without disks cannot; both clients say so in the machine's words.
		name: "upgrade", line: "upgrade --image ghcr.io/siderolabs/installer:v1.12.1 --timeout 2m", status: 1, left: "running",
		says: []string{"code = FailedPrecondition desc = system disk not found"}, never: []string{"post check passed"},
		after: "-e " + loopback + " -n " + alone + " version",
	},
}

// TestActionsOnMachines ends, wipes and upgrades machines with each client and compares what it says, what it returns
// and what is left.
func TestActionsOnMachines(t *testing.T) {
	for _, action := range actions {
		t.Run(action.name, func(t *testing.T) {
			var errors [][]string
			for _, who := range programs() {
				errors = append(errors, action.run(t, who))
			}
			if len(errors) == 2 && !slices.Equal(errors[0], errors[1]) {
				t.Errorf("errors of machines differ:\n  theirs: %v\n  ours:   %v", errors[0], errors[1])
			}
		})
	}
}

func (a action) run(t *testing.T, who client) []string {
	t.Helper()
	name := fmt.Sprintf("alone-%d", os.Getpid())
	// The machine has a configuration of its own, so that the one of the others is not touched.
	talosconfig := fleet.talosconfig
	fleet.talosconfig += "-alone"
	defer func() {
		ours().run(5*time.Minute, "cluster", "destroy", "--force", "--name", name)
		_ = os.Remove(fleet.talosconfig)
		fleet.talosconfig = talosconfig
	}()
	made := ours().run(10*time.Minute, "cluster", "create", "--name", name, "--cidr", "10.86.0.0/24",
		"--controlplanes", "1", "--workers", "0")
	if made.status != 0 {
		t.Fatalf("exit status %d: %s", made.status, made.stderr)
	}
	if !soon(func() bool { return ours().run(time.Minute, "-n", alone, "version").status == 0 }) {
		t.Fatal("the machine does not answer")
	}
	out := who.run(8*time.Minute, append([]string{"-n", alone}, words(a.line)...)...)
	if out.status != a.status {
		t.Fatalf("%s: exit status %d: %s%s", who.name, out.status, out.stdout, out.stderr)
	}
	for _, word := range a.says {
		if !strings.Contains(out.stderr, word) {
			t.Errorf("%s does not say %q:\n%s", who.name, word, out.stderr)
		}
	}
	for _, word := range a.never {
		if strings.Contains(out.stderr, word) {
			t.Errorf("%s says %q:\n%s", who.name, word, out.stderr)
		}
	}
	var shown outcome
	if !soon(func() bool {
		shown = ours().run(time.Minute, "cluster", "show", "--name", name)
		return strings.Contains(strings.ToLower(shown.stdout), a.left)
	}) {
		t.Errorf("%s: the machine is not %s: %s", who.name, a.left, shown.stdout)
	}
	if a.after != "" {
		var answer outcome
		if !soon(func() bool {
			answer = ours().run(time.Minute, words(a.after)...)
			return answer.status == 0
		}) {
			t.Errorf("%s: afterwards the machine does not answer: %s", who.name, answer.stderr)
		}
	}
	return rpcErrors(out.stderr)
}

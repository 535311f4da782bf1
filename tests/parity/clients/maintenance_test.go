package clients_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// TestMaintenance compares what the clients say of a machine that waits for its configuration.
func TestMaintenance(t *testing.T) {
	name := fmt.Sprintf("waiting-%d", os.Getpid())
	made := ours().run(10*time.Minute, "cluster", "create", "--name", name, "--cidr", "10.79.0.0/24",
		"--controlplanes", "1", "--workers", "0", "--skip-injecting-config", "--wait=false")
	t.Cleanup(func() { ours().run(5*time.Minute, "cluster", "destroy", "--force", "--name", name) })
	if made.status != 0 {
		t.Fatalf("exit status %d: %s", made.status, made.stderr)
	}
	const waiting = "-n 127.79.0.2 "
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(200 * time.Millisecond) {
		out := ours().run(time.Minute, words(waiting+"get hostname --insecure -o jsonpath={.spec.hostname}")...)
		if strings.Contains(out.stdout, "controlplane") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the machine does not answer: %s", out.stderr)
		}
	}
	compare(t, []comparison{
		{name: "insecure-get", digits: true, line: waiting + "get hostname --insecure", normalize: anyMachine},
		{name: "insecure-get-yaml", digits: true, line: waiting + "get hostname -i -o yaml", normalize: anyMachine},
		{name: "insecure-get-json", digits: true, line: waiting + "get hostname -i -o json", normalize: anyMachine},
		{name: "insecure-get-id", line: waiting + "get machinestatus machine -i", digits: true, normalize: spaced},
		{name: "insecure-get-secret", line: waiting + "get mc --insecure"},
		{name: "insecure-version", line: waiting + "version --insecure", normalize: servers},
		{name: "insecure-meta", line: waiting + "meta write 12 x --insecure"},
		{name: "insecure-wipe", line: waiting + "wipe disk nosuch -i"},
		{name: "insecure-reset", line: waiting + "reset --insecure --wait=false"},
		{name: "insecure-upgrade", line: waiting + "upgrade --insecure --wait=false"},
		{name: "insecure-apply-dry", line: waiting + "apply-config --insecure -f controlplane.yaml --dry-run"},
		{name: "insecure-apply-pinned", line: waiting + "apply-config --insecure -f controlplane.yaml --dry-run --cert-fingerprint AAAA", looseErrors: true},
		{name: "insecure-apply-mode", line: waiting + "apply-config --insecure -f controlplane.yaml --mode staged"},
		{name: "insecure-none", line: "get hostname --insecure", looseErrors: true},
	})
}

// anyMachine hides the name that the cluster of this run gave to its machine.
func anyMachine(text string) string {
	return strings.ReplaceAll(spaced(text), fmt.Sprintf("waiting-%d", os.Getpid()), "CLUSTER")
}

package clients_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// programs are the clients to hold against each other: both, or ours alone.
func programs() []client {
	if fleet.original == "" {
		return []client{ours()}
	}
	return []client{theirs(), ours()}
}

// TestCopy compares archives and directories that both clients make of the same files.
func TestCopy(t *testing.T) {
	var listings, trees []string
	for _, who := range programs() {
		out := who.run(3*time.Minute, words(one+"copy /etc -")...)
		if out.status != 0 {
			t.Fatalf("%s: %s", who.name, out.stderr)
		}
		listings = append(listings, listArchive(t, []byte(out.stdout)))
		target := filepath.Join(fleet.home, "copy-"+who.name)
		if out := who.run(3*time.Minute, words(one+"cp /etc "+target)...); out.status != 0 {
			t.Fatalf("%s: %s", who.name, out.stderr)
		}
		trees = append(trees, listTree(t, target))
	}
	if !strings.Contains(listings[0], "os-release") || !strings.Contains(trees[0], "os-release") {
		t.Errorf("the copy is incomplete: %s", trees[0])
	}
	if len(slices.Compact(listings)) != 1 {
		t.Errorf("archives differ%s", firstDifference(listings[0], listings[1]))
	}
	if len(slices.Compact(trees)) != 1 {
		t.Errorf("directories differ%s", firstDifference(trees[0], trees[1]))
	}
}

func listArchive(t *testing.T, packed []byte) string {
	t.Helper()
	unpacked, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for archive := tar.NewReader(unpacked); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, header.Name+" "+string(header.Typeflag)+" "+header.Linkname)
	}
	slices.Sort(names)
	return strings.Join(names, "\n")
}

func listTree(t *testing.T, root string) string {
	t.Helper()
	var names []string
	err := filepath.Walk(root, func(path string, info os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(root, path)
		size := int64(0)
		if info.Mode().IsRegular() {
			size = info.Size()
		}
		names = append(names, name+" "+info.Mode().Type().String()+" "+itoa(int(size)))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(names, "\n")
}

// TestSupport compares what the archives of both clients hold.
func TestSupport(t *testing.T) {
	var contents [][]string
	for _, who := range programs() {
		file := filepath.Join(fleet.home, who.name+".zip")
		out := who.run(10*time.Minute, words("support "+both+"-O "+file)...)
		if out.status != 0 && who == ours() {
			t.Fatalf("%s: %s", who.name, out.stderr)
		}
		archive, err := zip.OpenReader(file)
		if err != nil {
			// The original gives up when a machine does not know containers of Kubernetes.
			if who != ours() {
				t.Logf("%s made no archive: %s", who.name, out.stderr)
				continue
			}
			t.Fatal(err)
		}
		var names []string
		for _, entry := range archive.File {
			content, err := entry.Open()
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(content)
			if err != nil {
				t.Fatalf("%s: %v", entry.Name, err)
			}
			if strings.Contains(entry.Name, "osrootsecrets") && !strings.Contains(string(text), "<REDACTED>") {
				t.Errorf("%s: %s is not redacted", who.name, entry.Name)
			}
			// Empty parts are left out by ours.
			if len(text) > 0 {
				names = append(names, entry.Name)
			}
		}
		_ = archive.Close()
		slices.Sort(names)
		contents = append(contents, names)
	}
	mine := contents[len(contents)-1]
	for _, part := range []string{
		"dmesg.log", "dependencies.dot", "mounts", "processes", "summary", "service-logs/apid.log",
		"service-logs/apid.state", "resources/hostnamestatuses.net.talos.dev.yaml",
	} {
		for _, node := range []string{controlPlane, worker} {
			if !slices.Contains(mine, node+"/"+part) {
				t.Errorf("%s/%s is missing", node, part)
			}
		}
	}
	if len(contents) == 2 {
		if theirs := strings.Join(contents[0], "\n"); theirs != "" && theirs != strings.Join(mine, "\n") {
			t.Errorf("contents differ%s", firstDifference(theirs, strings.Join(mine, "\n")))
		}
	}
}

// onlySyn lets through what opens a TCP connection over Ethernet and IPv4: the API's own packets would feed the
// capture with itself.
const onlySyn = `{ 0x28, 0, 0, 0x0000000c },
{ 0x15, 0, 8, 0x00000800 },
{ 0x30, 0, 0, 0x00000017 },
{ 0x15, 0, 6, 0x00000006 },
{ 0x28, 0, 0, 0x00000014 },
{ 0x45, 4, 0, 0x00001fff },
{ 0xb1, 0, 0, 0x0000000e },
{ 0x50, 0, 0, 0x0000001b },
{ 0x45, 0, 1, 0x00000002 },
{ 0x6, 0, 0, 0x00040000 },
{ 0x6, 0, 0, 0x00000000 },`

// capture runs a client while others open connections.
func capture(who client, long time.Duration, args ...string) outcome {
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(300 * time.Millisecond):
				ours().run(30*time.Second, words(one+"version --short")...)
			}
		}
	}()
	args = append(words(one+"pcap -i eth0 --duration "+long.String()), args...)
	out := who.run(long+time.Minute, append(args, "--bpf-filter", onlySyn)...)
	close(stop)
	<-done
	return out
}

// TestPacketCapture reads captures of both clients while something travels over the link.
func TestPacketCapture(t *testing.T) {
	layer := regexp.MustCompile(`^- Layer \d \(\d\d bytes\) = (\w+)\t(.*)$`)
	field := regexp.MustCompile(`(\w+)=`)
	shapes := map[string]map[string]string{}
	for _, who := range programs() {
		// A busy machine may need longer until the first packet.
		var raw, text outcome
		for _, long := range []time.Duration{3 * time.Second, 10 * time.Second, 30 * time.Second} {
			if raw = capture(who, long, "-o", "-"); raw.status == 0 && len(raw.stdout) >= 24+16+54 {
				break
			}
		}
		if strings.Contains(raw.stderr, "Unimplemented") {
			t.Fatal("the machines do not capture packets")
		}
		magics := []uint32{0xa1b2c3d4, 0xa1b23c4d}
		if raw.status != 0 || len(raw.stdout) < 24+16+54 ||
			!slices.Contains(magics, binary.LittleEndian.Uint32([]byte(raw.stdout))) {
			t.Fatalf("%s: no capture: exit status %d, %d bytes, %s", who.name, raw.status, len(raw.stdout), raw.stderr)
		}
		for _, long := range []time.Duration{3 * time.Second, 10 * time.Second, 30 * time.Second} {
			if text = capture(who, long); text.status == 0 && strings.Contains(text.stdout, " = TCP\t") {
				break
			}
		}
		if text.status != 0 || !strings.HasPrefix(text.stdout, "PACKET: ") {
			t.Fatalf("%s: exit status %d: %s%.200s", who.name, text.status, text.stderr, text.stdout)
		}
		// Fields of every kind of layer, in order.
		shape := map[string]string{}
		for line := range strings.SplitSeq(text.stdout, "\n") {
			if match := layer.FindStringSubmatch(line); match != nil {
				var names []string
				for _, name := range field.FindAllStringSubmatch(match[2], -1) {
					names = append(names, name[1])
				}
				shape[match[1]] = strings.Join(names, " ")
			}
		}
		shapes[who.name] = shape
	}
	if _, there := shapes["ichorctl"]["TCP"]; !there {
		t.Errorf("the capture of a link that carries the machine API has no TCP: %v", shapes["ichorctl"])
	}
	for name, fields := range shapes["talosctl"] {
		if mine, there := shapes["ichorctl"][name]; there && mine != fields {
			t.Errorf("layer %s: fields\n  %s\nand\n  %s", name, fields, mine)
		}
	}
}

// soon waits for what comes a moment later, for a bounded time.
func soon(is func() bool) bool {
	for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		if is() {
			return true
		}
	}
	return false
}

// TestReboot follows a reboot of the worker with each client.
func TestReboot(t *testing.T) {
	for _, who := range programs() {
		if !soon(func() bool {
			ready := ours().run(time.Minute, "-n", worker, "get", "machinestatus", "-o", "jsonpath={.spec.status.ready}")
			return strings.TrimSpace(ready.stdout) == "true"
		}) {
			t.Fatal("the worker is not ready, so neither client would see it come back")
		}
		out := who.run(6*time.Minute, words("-n "+worker+" reboot --timeout 5m")...)
		if out.status != 0 {
			t.Fatalf("%s: exit status %d: %s", who.name, out.status, out.stderr)
		}
		for _, part := range []string{"actor ID: ", "events check condition met", "post check passed"} {
			if !strings.Contains(out.stderr, part) {
				t.Errorf("%s does not say %q:\n%s", who.name, part, out.stderr)
			}
		}
	}
}

// TestAudit finds the calls of this very test in the audit log.
func TestAudit(t *testing.T) {
	var out outcome
	if !soon(func() bool {
		ours().run(time.Minute, words(one+"read /etc/os-release")...)
		out = ours().run(time.Minute, words(one+"audit -o json --tail 200")...)
		return out.status == 0 && strings.Contains(out.stdout, "/machine.MachineService/Read")
	}) {
		t.Fatalf("exit status %d: %s%s", out.status, out.stderr, out.stdout)
	}
	table := ours().run(time.Minute, words(one+"audit --tail 200")...)
	if !regexp.MustCompile(`(?m)^NODE +TIME +CALLER +ROLES +ADDRESS +METHOD +CODE +DURATION`).MatchString(table.stdout) {
		t.Errorf("no table: %s", table.stdout)
	}
	if !regexp.MustCompile(`(?m)os:admin .*machine\.MachineService/Read +OK`).MatchString(table.stdout) {
		t.Errorf("the call is not in the table: %s", table.stdout)
	}
}

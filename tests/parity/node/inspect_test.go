package node_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	timeapi "github.com/siderolabs/talos/pkg/machinery/api/time"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func node(t *testing.T) context.Context {
	t.Helper()
	return client.WithNode(timeout(t, patience), fleet.controls[0])
}

func TestContainersOfTheSystemShowTheDaemons(t *testing.T) {
	c := connect(t)
	ctx := client.WithNodes(timeout(t, patience), everyNode()...)
	eventually(t, "containers", func() error {
		reply, err := c.Containers(ctx, "system", common.ContainerDriver_CONTAINERD)
		if err != nil {
			return err
		}
		seen := map[string]bool{}
		for _, message := range reply.GetMessages() {
			for _, found := range message.GetContainers() {
				if found.GetId() == "apid" && found.GetPid() > 1 && found.GetStatus() == "RUNNING" {
					seen[message.GetMetadata().GetHostname()] = true
				}
			}
		}
		if len(seen) != len(everyNode()) {
			return fmt.Errorf("apid was seen on %v", seen)
		}
		stats, err := c.Stats(node(t), "system", common.ContainerDriver_CONTAINERD)
		if err != nil || len(stats.GetMessages()[0].GetStats()) == 0 || stats.GetMessages()[0].GetStats()[0].GetMemoryUsage() == 0 {
			return fmt.Errorf("stats: %v %w", stats, err)
		}
		return nil
	})
}

func TestWithoutARuntimeThereAreNoContainersAndNoImages(t *testing.T) {
	c := connect(t)
	reply, err := c.Containers(node(t), "k8s.io", common.ContainerDriver_CRI)
	if err != nil || len(reply.GetMessages()) != 1 || len(reply.GetMessages()[0].GetContainers()) != 0 {
		t.Errorf("containers: %v %v", reply, err)
	}
	stream, err := c.ImageList(node(t), common.ContainerdNamespace_NS_CRI)
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Unavailable {
		t.Errorf("images: %v", err)
	}
	stream, err = c.ImageList(node(t), common.ContainerdNamespace_NS_UNKNOWN)
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("images of no namespace: %v", err)
	}
}

func TestNetstatFindsTheGateway(t *testing.T) {
	c := connect(t)
	reply, err := c.Netstat(node(t), &machine.NetstatRequest{
		Filter:  machine.NetstatRequest_LISTENING,
		Feature: &machine.NetstatRequest_Feature{Pid: true},
		L4Proto: &machine.NetstatRequest_L4Proto{Tcp: true, Tcp6: true},
		Netns:   &machine.NetstatRequest_NetNS{Hostnetwork: true, Allnetns: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, record := range reply.GetMessages()[0].GetConnectrecord() {
		if record.GetLocalport() == 50000 {
			if record.GetProcess().GetName() != "apid" || record.GetState() != machine.ConnectRecord_LISTEN {
				t.Errorf("the gateway: %v", record)
			}
			return
		}
	}
	t.Error("nobody listens on port 50000")
}

func TestPacketCaptureIsACaptureFile(t *testing.T) {
	c := connect(t)
	ctx, cancel := context.WithCancel(node(t))
	defer cancel()
	// ARP or anything else: the last instruction takes it.
	reader, err := c.PacketCapture(ctx, &machine.PacketCaptureRequest{
		Interface: "eth0",
		BpfFilter: []*machine.BPFInstruction{{Op: 0x06, K: 0x40000}},
		SnapLen:   96,
	})
	if err != nil {
		t.Fatal(err)
	}
	header := make([]byte, 24)
	if _, err = io.ReadFull(reader, header); err != nil {
		t.Fatal(err)
	}
	if binary.LittleEndian.Uint32(header) != 0xa1b23c4d || binary.LittleEndian.Uint32(header[20:]) != 1 {
		t.Errorf("header: %x", header)
	}
	packet := make([]byte, 16)
	if _, err = io.ReadFull(reader, packet); err != nil {
		t.Fatal(err)
	}
	kept, length := binary.LittleEndian.Uint32(packet[8:]), binary.LittleEndian.Uint32(packet[12:])
	if kept > 96 || kept > length || length < 14 {
		t.Errorf("packet of %d bytes, %d kept", length, kept)
	}
	cancel()
	for name, request := range map[codes.Code]*machine.PacketCaptureRequest{
		codes.NotFound:        {Interface: "eth99"},
		codes.InvalidArgument: {Interface: "eth0", BpfFilter: []*machine.BPFInstruction{{Op: 0x15, Jt: 200}}},
	} {
		reader, err := c.PacketCapture(node(t), request)
		if err == nil {
			_, err = io.ReadAll(reader)
		}
		if status.Code(err) != name {
			t.Errorf("%v: %v", request, err)
		}
	}
}

func TestCopyIsAReadableArchive(t *testing.T) {
	c := connect(t)
	reader, err := c.Copy(node(t), "/etc")
	if err != nil {
		t.Fatal(err)
	}
	packed, err := io.ReadAll(reader)
	if err != nil {
		t.Fatal(err)
	}
	unzipped, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]byte{}
	for archive := tar.NewReader(unzipped); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if written, err := io.Copy(io.Discard, archive); err != nil || written != header.Size {
			t.Errorf("%s: %d of %d bytes, %v", header.Name, written, header.Size, err)
		}
		names[header.Name] = header.Typeflag
	}
	if names["hosts"] != tar.TypeReg || names["ssl/"] != tar.TypeDir || names["pki"] != tar.TypeSymlink {
		t.Errorf("names: %v", names)
	}
	missing, err := c.Copy(node(t), "/no/such/path")
	if err == nil {
		_, err = io.ReadAll(missing)
	}
	if err == nil {
		t.Error("a copy of nothing succeeded")
	}
}

func TestDiskUsageAddsUp(t *testing.T) {
	c := connect(t)
	stream, err := c.DiskUsage(node(t), &machine.DiskUsageRequest{RecursionDepth: 2, All: true, Paths: []string{"/etc"}})
	if err != nil {
		t.Fatal(err)
	}
	infos, err := recvAll(stream.Recv)
	if err != nil || len(infos) < 2 {
		t.Fatalf("usage: %v %v", infos, err)
	}
	list, err := c.LS(node(t), &machine.ListRequest{Root: "/etc"})
	if err != nil {
		t.Fatal(err)
	}
	entries, err := recvAll(list.Recv)
	if err != nil {
		t.Fatal(err)
	}
	sum := entries[0].GetSize()
	for _, info := range infos[:len(infos)-1] {
		sum += info.GetSize()
	}
	if last := infos[len(infos)-1]; last.GetName() != "/etc" || last.GetSize() != sum {
		t.Errorf("%v, but its parts are %d bytes", last, sum)
	}
}

func TestMetaKeysAreWrittenAndDeleted(t *testing.T) {
	c := connect(t)
	if err := c.MetaWrite(node(t), 0x0b, []byte("parity")); err != nil {
		t.Fatal(err)
	}
	if err := c.MetaDelete(node(t), 0x0b); err != nil {
		t.Fatal(err)
	}
	if err := c.MetaDelete(node(t), 0x0b); status.Code(err) != codes.NotFound {
		t.Errorf("deleted twice: %v", err)
	}
}

func TestAServiceThatIsNotThere(t *testing.T) {
	c := connect(t)
	if _, err := c.ServiceRestart(node(t), "nope"); err == nil {
		t.Error("restarted nothing")
	}
	if err := c.Restart(node(t), "system", common.ContainerDriver_CONTAINERD, "nope"); err == nil {
		t.Error("restarted no container")
	}
	reader, err := c.Logs(node(t), "system", common.ContainerDriver_CONTAINERD, "nope", false, -1)
	if err == nil {
		_, err = reader.Recv()
	}
	if err == nil {
		t.Error("read the log of nothing")
	}
}

func TestATimeServerThatDoesNotAnswerIsNamed(t *testing.T) {
	c := connect(t)
	_, err := c.TimeClient.TimeCheck(node(t), &timeapi.TimeRequest{Server: "127.0.0.1"})
	if status.Code(err) != codes.Unknown {
		t.Errorf("time: %v", err)
	}
}

func TestConfigurationsAreGeneratedOnTheNode(t *testing.T) {
	c := connect(t)
	//nolint:staticcheck // deprecated, and still there.
	reply, err := c.GenerateConfiguration(node(t), &machine.GenerateConfigurationRequest{
		ConfigVersion: "v1alpha1",
		ClusterConfig: &machine.ClusterConfig{
			Name:         "made",
			ControlPlane: &machine.ControlPlaneConfig{Endpoint: "https://10.77.0.2:6443"},
		},
		MachineConfig: &machine.MachineConfig{
			Type:              machine.MachineConfig_TYPE_WORKER,
			KubernetesVersion: "1.35.0",
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if data := reply.GetMessages()[0].GetData(); len(data) != 1 || !bytes.Contains(data[0], []byte("type: worker")) {
		t.Errorf("configuration: %s", data)
	}
}

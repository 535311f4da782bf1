// Package discovery lets the published discovery client find nodes through our service.
package discovery

import (
	"bufio"
	"context"
	"crypto/aes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clientpb "github.com/siderolabs/discovery-api/api/v1alpha1/client/pb"
	serverpb "github.com/siderolabs/discovery-api/api/v1alpha1/server/pb"
	"github.com/siderolabs/discovery-client/pkg/client"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// examplesEnv names the directory of our example programs; `make test` sets it.
const examplesEnv = "ICHOR_EXAMPLES"

// patience bounds every wait.
const patience = 2 * time.Minute

// startService runs a fresh service for one test and returns its address.
func startService(t *testing.T) string {
	t.Helper()

	dir := os.Getenv(examplesEnv)
	require.NotEmpty(t, dir, "%s must name the directory of the example programs", examplesEnv)

	cmd := exec.Command(filepath.Join(dir, "discovery-server"), "127.0.0.1:0")
	cmd.Stderr = os.Stderr

	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)

	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())

	t.Cleanup(func() {
		stdin.Close() //nolint:errcheck

		timer := time.AfterFunc(patience, func() { cmd.Process.Kill() }) //nolint:errcheck
		defer timer.Stop()

		assert.NoError(t, cmd.Wait())
	})

	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)

	return strings.TrimSpace(line)
}

// newNode runs a client of the published library until the test ends.
func newNode(t *testing.T, address, id string, key byte) *client.Client {
	t.Helper()

	cipher, err := aes.NewCipher(slices.Repeat([]byte{key}, 32))
	require.NoError(t, err)

	node, err := client.NewClient(client.Options{
		Cipher:        cipher,
		Endpoint:      address,
		ClusterID:     "cluster",
		AffiliateID:   id,
		ClientVersion: "v1.12.1",
		TTL:           time.Minute,
		Insecure:      true,
	})
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)

	go func() { done <- node.Run(ctx, zap.NewNop(), make(chan struct{}, 1)) }()

	t.Cleanup(func() {
		cancel()

		select {
		case err := <-done:
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("the client ended with %v", err)
			}
		case <-time.After(patience):
			t.Error("the client did not end")
		}
	})

	return node
}

// tell sets what a node says of itself.
func tell(t *testing.T, node *client.Client, id string, others ...client.Endpoint) {
	t.Helper()

	require.NoError(t, node.SetLocalData(&client.Affiliate{
		Affiliate: &clientpb.Affiliate{NodeId: id, Hostname: id + ".example", Nodename: id, MachineType: "controlplane"},
		Endpoints: []*clientpb.Endpoint{{Ip: []byte{10, 5, 0, 2}, Port: 51820}},
	}, others))
}

// sees tells whether a node knows another, with this many endpoints of it.
func sees(node *client.Client, id string, endpoints int) func() bool {
	return func() bool {
		return slices.ContainsFunc(node.GetAffiliates(), func(other *client.Affiliate) bool {
			return other.Affiliate.NodeId == id && other.Affiliate.Hostname == id+".example" && len(other.Endpoints) == endpoints
		})
	}
}

func TestNodesFindEachOtherAndLeave(t *testing.T) {
	address := startService(t)
	one, two := newNode(t, address, "one", 1), newNode(t, address, "two", 1)
	tell(t, one, "one")
	tell(t, two, "two")
	require.Eventually(t, sees(one, "two", 1), patience, 10*time.Millisecond)
	require.Eventually(t, sees(two, "one", 1), patience, 10*time.Millisecond)
	assert.Equal(t, []byte{127, 0, 0, 1}, one.GetPublicIP())

	tell(t, one, "one", client.Endpoint{
		AffiliateID: "two",
		Endpoints:   []*clientpb.Endpoint{{Ip: []byte{10, 5, 0, 2}, Port: 51820}, {Ip: []byte{192, 0, 2, 7}, Port: 1}},
	})
	require.Eventually(t, sees(one, "two", 2), patience, 10*time.Millisecond)

	two.DeleteLocalAffiliate()
	require.Eventually(t, func() bool { return len(one.GetAffiliates()) == 0 }, patience, 10*time.Millisecond)
}

func TestNodesWithAnotherKeyStayStrangers(t *testing.T) {
	address := startService(t)
	one, two, three := newNode(t, address, "one", 1), newNode(t, address, "two", 2), newNode(t, address, "three", 1)
	tell(t, two, "two")
	tell(t, three, "three")
	tell(t, one, "one")
	require.Eventually(t, sees(one, "three", 1), patience, 10*time.Millisecond)
	assert.Len(t, one.GetAffiliates(), 1)
}

func TestWhatIsOutOfBoundsHasTheCodeOfTheOriginal(t *testing.T) {
	conn, err := grpc.NewClient(startService(t), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)

	defer conn.Close() //nolint:errcheck

	service := serverpb.NewClusterClient(conn)

	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()

	update := func(change func(*serverpb.AffiliateUpdateRequest)) codes.Code {
		request := &serverpb.AffiliateUpdateRequest{ClusterId: "c", AffiliateId: "a", Ttl: durationpb.New(time.Minute)}
		change(request)
		_, err := service.AffiliateUpdate(ctx, request)

		return status.Code(err)
	}

	endpoints := make([][]byte, 65)
	for i := range endpoints {
		endpoints[i] = []byte{byte(i)}
	}

	for name, test := range map[string]struct {
		change func(*serverpb.AffiliateUpdateRequest)
		code   codes.Code
	}{
		"fits":               {func(*serverpb.AffiliateUpdateRequest) {}, codes.OK},
		"no cluster":         {func(r *serverpb.AffiliateUpdateRequest) { r.ClusterId = "" }, codes.InvalidArgument},
		"long affiliate":     {func(r *serverpb.AffiliateUpdateRequest) { r.AffiliateId = strings.Repeat("a", 257) }, codes.InvalidArgument},
		"long data":          {func(r *serverpb.AffiliateUpdateRequest) { r.AffiliateData = make([]byte, 2049) }, codes.InvalidArgument},
		"long endpoint":      {func(r *serverpb.AffiliateUpdateRequest) { r.AffiliateEndpoints = [][]byte{make([]byte, 33)} }, codes.InvalidArgument},
		"long ttl":           {func(r *serverpb.AffiliateUpdateRequest) { r.Ttl = durationpb.New(time.Hour) }, codes.InvalidArgument},
		"too many endpoints": {func(r *serverpb.AffiliateUpdateRequest) { r.AffiliateEndpoints = endpoints }, codes.ResourceExhausted},
	} {
		assert.Equal(t, test.code, update(test.change), name)
	}

	// A watch begins with all there is, even when that is nothing.
	watch, err := service.Watch(ctx, &serverpb.WatchRequest{ClusterId: "empty"})
	require.NoError(t, err)

	first, err := watch.Recv()
	require.NoError(t, err)
	assert.Empty(t, first.Affiliates)
	assert.False(t, first.Deleted)
}

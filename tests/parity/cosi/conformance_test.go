// Package cosi runs the published conformance suite of the COSI runtime against our State service,
// through the suite's own gRPC client.
package cosi

import (
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/protobuf"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/cosi-project/runtime/pkg/state/conformance"
	"github.com/cosi-project/runtime/pkg/state/protobuf/client"
	"github.com/stretchr/testify/require"
	"github.com/stretchr/testify/suite"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// serverEnv names the test server; `make test` sets it.
const serverEnv = "ICHOR_STATE_SERVER"

func init() {
	if err := protobuf.RegisterResource(conformance.PathResourceType, &conformance.PathResource{}); err != nil {
		panic(err)
	}
}

// startServer runs a fresh server for one test and returns a connection to it.
func startServer(t *testing.T) *grpc.ClientConn {
	t.Helper()

	binary := os.Getenv(serverEnv)
	require.NotEmpty(t, binary, "%s must name the state server", serverEnv)

	// Short, because the name of a Unix socket is.
	dir, err := os.MkdirTemp("", "ichor")
	require.NoError(t, err)

	t.Cleanup(func() { os.RemoveAll(dir) }) //nolint:errcheck

	socket := filepath.Join(dir, "s")
	cmd := exec.Command(binary, socket)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr

	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())

	t.Cleanup(func() { stop(t, cmd, stdin) })

	require.Eventually(t, func() bool {
		// The name is there a moment before anybody listens.
		probe, err := net.Dial("unix", socket)
		if err != nil {
			return false
		}

		return probe.Close() == nil
	}, time.Minute, 10*time.Millisecond, "the server did not listen")

	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)

	t.Cleanup(func() { conn.Close() }) //nolint:errcheck

	return conn
}

// stop ends the server by the end of its input, and by force when that takes too long.
func stop(t *testing.T, cmd *exec.Cmd, stdin io.Closer) {
	t.Helper()

	require.NoError(t, stdin.Close())

	timer := time.AfterFunc(30*time.Second, func() { cmd.Process.Kill() }) //nolint:errcheck
	defer timer.Stop()

	cmd.Wait() //nolint:errcheck
}

func newState(t *testing.T) state.State {
	t.Helper()

	return state.WrapCore(client.NewAdapter(v1alpha1.NewStateClient(startServer(t))))
}

func TestConformance(t *testing.T) {
	suite.Run(t, &conformance.StateSuite{
		State:      newState(t),
		Namespaces: []resource.Namespace{"default", "controller", "system", "runtime"},
	})
}

func TestConformanceOneNamespace(t *testing.T) {
	suite.Run(t, &conformance.StateSuite{
		State:      newState(t),
		Namespaces: []resource.Namespace{"default"},
	})
}

// TestErrorTexts holds our messages against those the original's callers know.
func TestErrorTexts(t *testing.T) {
	st := newState(t)

	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()

	path := conformance.NewPathResource("default", "var/run")

	_, err := st.Get(ctx, path.Metadata())
	require.ErrorContains(t, err, `resource os/path(default/var/run@undefined) doesn't exist`)

	require.NoError(t, st.Create(ctx, path, state.WithCreateOwner("me")))
	require.ErrorContains(t, st.Create(ctx, path, state.WithCreateOwner("me")), `resource os/path(default/var/run@1) already exists`)
	require.ErrorContains(t, st.Update(ctx, path), `resource os/path(default/var/run@1) is owned by "me"`)

	path.Metadata().SetVersion(path.Metadata().Version().Next())
	require.ErrorContains(t, st.Update(ctx, path, state.WithUpdateOwner("me")),
		`resource os/path(default/var/run@1) update conflict: expected version "2", actual version "1"`)

	require.NoError(t, st.AddFinalizer(ctx, path.Metadata(), "a", "b"))
	require.ErrorContains(t, st.Destroy(ctx, path.Metadata(), state.WithDestroyOwner("me")), `has pending finalizers &[a b]`)

	_, err = st.Teardown(ctx, path.Metadata(), state.WithTeardownOwner("me"))
	require.NoError(t, err)

	current, err := st.Get(ctx, path.Metadata())
	require.NoError(t, err)
	require.ErrorContains(t, st.Update(ctx, current, state.WithUpdateOwner("me")), `is not in phase running`)
}

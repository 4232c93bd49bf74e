package containerd

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/proxy"
	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"lighter/socket"
	"lighter/test/testkit/socketdir"
)

// serve serves a snapshotter on a socket, without a differ. It returns a client such as containerd
// has.
func serve(t *testing.T, sn snapshots.Snapshotter) (client snapshots.Snapshotter, path string, stop func()) {
	t.Helper()
	path = filepath.Join(socketdir.New(t), "s.sock")
	listener := must[net.Listener](t)(socket.Listen(t.Context(), path))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, listener, sn, nil) }()
	conn := must[*grpc.ClientConn](t)(grpc.NewClient("unix://"+path,
		grpc.WithTransportCredentials(insecure.NewCredentials())))
	t.Cleanup(func() { conn.Close() })
	return proxy.NewSnapshotter(snapshotsapi.NewSnapshotsClient(conn), "lighter"), path, func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// A client on the socket gets the snapshotter's mounts and kinds of errors. When Serve ends, the
// socket is gone.
func TestOverTheSocket(t *testing.T) {
	one := chainID("1")
	sn, chains := newTest(t, one)
	client, path, stop := serve(t, sn)
	if _, err := client.Prepare(t.Context(), "extract", "", ref(one)); !errdefs.IsAlreadyExists(err) {
		t.Errorf("error %v, want already exists", err)
	}
	lazy := find(t, sn, one, "")
	mounts := must[[]mount.Mount](t)(client.Prepare(t.Context(), "key", lazy))
	if option(t, mounts, "lowerdir") != chains.tree(one) {
		t.Errorf("mounts %v, want the tree", mounts)
	}
	chains.fails[one] = errHubGone
	if _, err := client.Mounts(t.Context(), "key"); !errdefs.IsUnavailable(err) {
		t.Errorf("error %v, want unavailable", err)
	}
	if err := client.(snapshots.Cleaner).Cleanup(t.Context()); err != nil {
		t.Error(err)
	}
	stop()
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the socket after Serve: got %v, want that it does not exist", err)
	}
}

// When Serve stops, it waits for a request in flight, and the client gets the answer.
func TestStopLetsRequestsFinish(t *testing.T) {
	one := chainID("1")
	sn, chains := newTest(t, one)
	asked, answer := make(chan struct{}), make(chan struct{})
	chains.onClaim = func() { close(asked); <-answer }
	client, _, stop := serve(t, sn)
	result := make(chan error, 1)
	go func() {
		_, err := client.Prepare(t.Context(), "extract", "", ref(one))
		result <- err
	}()
	<-asked
	stopped := make(chan struct{})
	go func() { stop(); close(stopped) }()
	close(answer)
	if err := <-result; !errdefs.IsAlreadyExists(err) {
		t.Errorf("error %v, want already exists", err)
	}
	<-stopped
}

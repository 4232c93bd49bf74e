package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
	"time"

	"lighter/proc"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/contrib/snapshotservice"
	"github.com/containerd/containerd/v2/core/snapshots"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
)

// stopTimeout bounds how long Serve waits, when it is told to stop, for the
// requests that it is answering.
const stopTimeout = 10 * time.Second

// maxRequests bounds the requests of one connection that are answered at once;
// containerd keeps the others waiting.
const maxRequests = 1024

// NewService returns a gRPC server that speaks containerd's snapshots API for sn.
func NewService(sn snapshots.Snapshotter) *grpc.Server {
	server := grpc.NewServer(grpc.MaxConcurrentStreams(maxRequests))
	snapshotsapi.RegisterSnapshotsServer(server, snapshotservice.FromSnapshotter(sn))
	return server
}

// Listen makes a Unix socket at path that only its owner can connect to. A
// socket that nobody listens on any more is replaced; anything else is left
// alone, with an error.
func Listen(ctx context.Context, path string) (net.Listener, error) {
	if err := removeStale(ctx, path); err != nil {
		return nil, err
	}
	config := net.ListenConfig{Control: func(_, _ string, conn syscall.RawConn) error {
		// Linux gives the file the mode that the socket has when it is bound, so
		// that there is no moment in which others could connect.
		var err error
		if cerr := conn.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }); cerr != nil {
			return cerr
		}
		return err
	}}
	listener, err := config.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return listener, nil
}

func removeStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at %s: %w", path, err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s exists and is not a socket: remove it, or listen elsewhere", path)
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", path)
	if err == nil {
		defer conn.Close()
		if listenerIsDead(conn) {
			return os.Remove(path)
		}
		return fmt.Errorf("somebody listens on %s already: stop that process, or choose another address", path)
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("find out who listens on %s: %w", path, err)
	}
	return os.Remove(path)
}

// listenerIsDead reports whether the listening process was killed, though the kernel has not
// closed its sockets yet.
func listenerIsDead(conn net.Conn) bool {
	peer, err := proc.Peer(conn.(*net.UnixConn))
	return err == nil && proc.IsDead(int(peer.Pid))
}

// Serve answers requests for sn on listener until ctx ends. Then it lets those
// under way finish, for a while, closes the listener and returns nil.
func Serve(ctx context.Context, listener net.Listener, sn snapshots.Snapshotter) error {
	server := NewService(sn)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve snapshots: %w", err)
	case <-ctx.Done():
	}
	timer := time.AfterFunc(stopTimeout, server.Stop)
	defer timer.Stop()
	server.GracefulStop()
	return <-ended
}

package containerd

import (
	"context"
	"fmt"
	"net"
	"time"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/contrib/snapshotservice"
	"github.com/containerd/containerd/v2/core/snapshots"
	"google.golang.org/grpc"
)

// stopTimeout bounds how long Serve waits for requests in flight when it stops.
const stopTimeout = 10 * time.Second

// maxRequests bounds the requests in flight of one connection. The client queues further requests.
const maxRequests = 1024

// Serve speaks containerd's snapshots API for sn on listener until ctx ends. Then it closes the
// listener, waits for requests in flight, cuts off those that take longer than stopTimeout, and
// returns nil. It returns an error if the listener fails before.
func Serve(ctx context.Context, listener net.Listener, sn snapshots.Snapshotter) error {
	server := grpc.NewServer(grpc.MaxConcurrentStreams(maxRequests))
	snapshotsapi.RegisterSnapshotsServer(server, snapshotservice.FromSnapshotter(sn))
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

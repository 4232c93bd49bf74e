package containerd

import (
	"context"
	"fmt"
	"net"
	"time"

	diffapi "github.com/containerd/containerd/api/services/diff/v1"
	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/contrib/diffservice"
	"github.com/containerd/containerd/v2/contrib/snapshotservice"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/snapshots"
	"google.golang.org/grpc"
)

// stopTimeout bounds how long Serve waits for requests in flight when it stops.
const stopTimeout = 10 * time.Second

// maxRequests bounds the requests in flight of one connection. The client queues further requests.
const maxRequests = 1024

// Serve speaks containerd's snapshots API for sn, and its diff API for differ (nil: not at all), on
// listener until ctx ends. It applies no layers: requests to do so get ErrNotImplemented, so that
// containerd does it. When ctx ends, Serve closes the listener, waits for requests in flight, cuts
// off those that take longer than stopTimeout, and returns nil. It returns an error if the listener
// fails before.
func Serve(ctx context.Context, listener net.Listener, sn snapshots.Snapshotter, differ diff.Comparer) error {
	server := grpc.NewServer(grpc.MaxConcurrentStreams(maxRequests))
	snapshotsapi.RegisterSnapshotsServer(server, snapshotservice.FromSnapshotter(sn))
	if differ != nil {
		diffapi.RegisterDiffServer(server, diffservice.FromApplierAndComparer(nil, differ))
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve containerd: %w", err)
	case <-ctx.Done():
	}
	timer := time.AfterFunc(stopTimeout, server.Stop)
	defer timer.Stop()
	server.GracefulStop()
	return <-ended
}

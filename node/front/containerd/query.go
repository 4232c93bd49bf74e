package containerd

import (
	"context"
	"fmt"
	"strings"

	"github.com/containerd/containerd/api/services/introspection/v1"
	"github.com/containerd/containerd/api/services/version/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"
)

// Info describes a running containerd.
type Info struct {
	Version      string            // with a leading "v"
	Snapshotters map[string]string // by name: why it cannot be used, or "" if it can
}

// dial returns a connection to the containerd that listens on a Unix socket. It does not connect
// yet.
func dial(socket string) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("connect to containerd at %s: %w", socket, err)
	}
	return conn, nil
}

// Query asks the containerd that listens on a Unix socket for its version and snapshotters.
func Query(ctx context.Context, socket string) (Info, error) {
	conn, err := dial(socket)
	if err != nil {
		return Info{}, err
	}
	defer conn.Close()
	answer, err := version.NewVersionClient(conn).Version(ctx, &emptypb.Empty{})
	if err != nil {
		return Info{}, fmt.Errorf("ask containerd at %s for its version: %w", socket, err)
	}
	c := Info{Version: "v" + strings.TrimPrefix(answer.Version, "v"), Snapshotters: map[string]string{}}
	request := &introspection.PluginsRequest{Filters: []string{"type==io.containerd.snapshotter.v1"}}
	plugins, err := introspection.NewIntrospectionClient(conn).Plugins(ctx, request)
	if err != nil {
		return c, fmt.Errorf("ask containerd at %s for its plugins: %w", socket, err)
	}
	for _, p := range plugins.Plugins {
		c.Snapshotters[p.ID] = p.InitErr.GetMessage()
	}
	return c, nil
}

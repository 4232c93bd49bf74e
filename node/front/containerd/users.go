package containerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"

	"github.com/containerd/containerd/api/services/containers/v1"
	"github.com/containerd/containerd/api/services/namespaces/v1"
	"google.golang.org/grpc/metadata"
)

// User is a container whose root is a snapshot of one snapshotter.
type User struct {
	Namespace, Container string
	Pod                  string // NAMESPACE/NAME of its pod; empty: it belongs to none
	PodUID               string
}

func (u User) String() string {
	if u.Pod != "" {
		return "pod " + u.Pod
	}
	return fmt.Sprintf("container %s (namespace %s)", u.Container, u.Namespace)
}

// Labels that CRI gives to the containers of pods.
const (
	podName      = "io.kubernetes.pod.name"
	podNamespace = "io.kubernetes.pod.namespace"
	podUID       = "io.kubernetes.pod.uid"
)

// Users returns the containers, also stopped ones, whose roots are snapshots of a snapshotter, lazy
// or not. Without the snapshotter, containerd could not remove them.
func Users(ctx context.Context, socket, snapshotter string) ([]User, error) {
	conn, err := dial(socket)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	all, err := namespaces.NewNamespacesClient(conn).List(ctx, &namespaces.ListNamespacesRequest{})
	if err != nil {
		return nil, fmt.Errorf("list the namespaces of containerd at %s: %w", socket, err)
	}
	var users []User
	for _, ns := range all.Namespaces {
		in := metadata.AppendToOutgoingContext(ctx, "containerd-namespace", ns.Name)
		for c, err := range list(in, containers.NewContainersClient(conn)) {
			if err != nil {
				return nil, fmt.Errorf("list the containers in namespace %s of containerd at %s: %w", ns.Name, socket,
					err)
			}
			if c.Snapshotter != snapshotter {
				continue
			}
			u := User{Namespace: ns.Name, Container: c.ID, PodUID: c.Labels[podUID]}
			if name := c.Labels[podName]; name != "" {
				u.Pod = c.Labels[podNamespace] + "/" + name
			}
			users = append(users, u)
		}
	}
	slices.SortFunc(users, func(a, b User) int { return strings.Compare(a.String(), b.String()) })
	return users, nil
}

// list returns the containers of a namespace, one by one: one message may be too small for all of
// them. Containerd has no filter for a container's snapshotter.
func list(ctx context.Context, client containers.ContainersClient) iter.Seq2[*containers.Container, error] {
	return func(yield func(*containers.Container, error) bool) {
		stream, err := client.ListStream(ctx, &containers.ListContainersRequest{})
		for err == nil {
			var m *containers.ListContainerMessage
			if m, err = stream.Recv(); err == nil && !yield(m.Container, nil) {
				return
			}
		}
		if !errors.Is(err, io.EOF) {
			yield(nil, err)
		}
	}
}

package containerd

import (
	"context"
	"net"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/containerd/containerd/api/services/containers/v1"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"lighter/format/guess"
)

// runtimes is a containerd that has containers in one namespace.
type runtimes struct {
	containers.UnimplementedContainersServer
	all []*containers.Container
}

func (r *runtimes) Get(
	ctx context.Context, q *containers.GetContainerRequest,
) (*containers.GetContainerResponse, error) {
	ns, _ := namespaces.Namespace(ctx)
	for _, c := range r.all {
		if c.ID == q.ID && ns == "pods" {
			return &containers.GetContainerResponse{Container: c}, nil
		}
	}
	return nil, status.Error(codes.NotFound, "no such container")
}

// openPrograms returns the programs of a containerd that has containers.
func openPrograms(t *testing.T, all ...*containers.Container) *Programs {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "containerd.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	containers.RegisterContainersServer(server, &runtimes{all: all})
	go func() { _ = server.Serve(listener) }() // Stop ends it
	t.Cleanup(server.Stop)
	p, err := OpenPrograms(socket, discard)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func running(name, snapshot, spec string) *containers.Container {
	return &containers.Container{ID: name, SnapshotKey: snapshot, Spec: &anypb.Any{Value: []byte(spec)}}
}

// The program of a container is that of its spec. Nothing is noted of a snapshot that no container
// has, or whose container's spec is of no use.
func TestPrograms(t *testing.T) {
	spec := `{"process": {"args": ["tool", "-v"], "env": ["PATH=/opt", "SECRET=x"], "cwd": "/data"}, "root": {}}`
	want := guess.Config{Cmd: []string{"tool", "-v"}, Env: []string{"PATH=/opt"}, WorkingDir: "/data"}
	p := openPrograms(t, running("a", "a", spec), running("b", "another", spec), running("c", "c", "{}"),
		running("d", "d", `{"process": []}`), running("e/f", "e/f", spec), &containers.Container{ID: "g", SnapshotKey: "g"},
		running("h", "h", spec+strings.Repeat(" ", maxSpec)))
	noted := map[string]guess.Config{}
	find := func(key string) {
		p.Find(key, func(_ context.Context, program guess.Config) { noted[key] = program })
		p.work.Wait()
	}
	for _, key := range []string{"pods/7/a", "pods/8/b", "pods/9/c", "pods/10/d", "pods/11/none", "others/12/a",
		"pods/13/e/f", "pods/14/g", "pods/15/h", "a", "pods/a", ""} {
		find(key)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	all := map[string]guess.Config{"pods/7/a": want, "pods/13/e/f": want}
	if !reflect.DeepEqual(noted, all) {
		t.Errorf("noted %v, want %v", noted, all)
	}
	clear(noted)
	if find("pods/7/a"); len(noted) > 0 {
		t.Errorf("after Close: noted %v", noted)
	}
}

// A containerd that does not answer delays nothing, and costs a bounded number of requests.
func TestProgramsOfABusyContainerd(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "containerd.sock")
	listener, err := net.Listen("unix", socket) // nobody accepts
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	p, err := OpenPrograms(socket, discard)
	if err != nil {
		t.Fatal(err)
	}
	for range 10 * maxPrograms {
		p.Find("pods/1/a", func(context.Context, guess.Config) { t.Error("a program was found") })
	}
	if got := len(p.slots); got != maxPrograms {
		t.Errorf("%d lookups run, want %d", got, maxPrograms)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
}

// The mounts of active snapshots on lazy chains are noted, and those of others are not.
func TestNoteMounts(t *testing.T) {
	lazy := chainID("1")
	sn, _ := newTest(t, lazy)
	var noted []string
	sn.noteMounts = func(key, chain string) { noted = append(noted, key+" "+chain) }
	ctx, base := t.Context(), unpack(t, sn, "layer", "", lazy)
	must[[]mount.Mount](t)(sn.Prepare(ctx, "a", base))
	must[[]mount.Mount](t)(sn.View(ctx, "b", base))
	must[[]mount.Mount](t)(sn.Prepare(ctx, "c", ""))
	for _, key := range []string{"a", "b", "c", "a"} {
		must[[]mount.Mount](t)(sn.Mounts(ctx, key))
	}
	if got, want := strings.Join(noted, ", "), "a "+lazy+", a "+lazy; got != want {
		t.Errorf("noted %q, want %q", got, want)
	}
	if _, err := sn.Mounts(ctx, "none"); err == nil || len(noted) != 2 {
		t.Errorf("mounts of a snapshot that is not there: error %v, noted %q", err, noted)
	}
}

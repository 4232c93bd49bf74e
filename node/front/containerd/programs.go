package containerd

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/api/services/containers/v1"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"google.golang.org/grpc"

	"lighter/format/guess"
)

const (
	// programTime bounds the time for a container's program. Later it runs already.
	programTime = 2 * time.Second
	// maxPrograms bounds the containers whose programs are looked up at a time. Those of others are
	// not looked up.
	maxPrograms = 16
	// maxSpec bounds the spec of a container, in bytes. Those of Kubernetes have some 10 kB.
	maxSpec = 256 << 10
)

// Programs looks up what containers run, in containerd, before they run it. It is safe for
// concurrent use.
type Programs struct {
	conn *grpc.ClientConn
	log  *slog.Logger

	ctx   context.Context // ends with Close
	stop  context.CancelFunc
	slots chan struct{}

	mu     sync.Mutex // held to begin work, and guards closed
	work   sync.WaitGroup
	closed bool
}

// OpenPrograms returns the programs of the containerd that listens on a Unix socket. It does not
// connect yet.
func OpenPrograms(socket string, log *slog.Logger) (*Programs, error) {
	conn, err := dial(socket)
	if err != nil {
		return nil, err
	}
	p := &Programs{conn: conn, log: log, slots: make(chan struct{}, maxPrograms)}
	p.ctx, p.stop = context.WithCancel(context.Background())
	return p, nil
}

// Close ends all lookups, and closes the connection to containerd.
func (p *Programs) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.stop()
	p.work.Wait()
	return p.conn.Close()
}

// Find looks up the container of an active snapshot in the background, and calls note with its
// program. There may be none: containerd also asks for mounts to read an image's users, and to
// unpack layers.
func (p *Programs) Find(key string, note func(ctx context.Context, program guess.Config)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	select {
	case p.slots <- struct{}{}:
	default:
		return
	}
	p.work.Go(func() {
		defer func() { <-p.slots }()
		ctx, cancel := context.WithTimeout(p.ctx, programTime)
		defer cancel()
		program, err := p.of(ctx, key)
		if err != nil {
			p.log.Debug("it is not known what a container runs", "snapshot", key, "err", err)
			return
		}
		note(ctx, program)
	})
}

// of returns what the container of an active snapshot runs. Containerd's clients give a container
// and its snapshot the same name.
func (p *Programs) of(ctx context.Context, key string) (program guess.Config, err error) {
	namespace, rest, _ := strings.Cut(key, "/") // NAMESPACE/NUMBER/NAME: containerd has made it
	_, name, found := strings.Cut(rest, "/")
	if !found {
		return program, fmt.Errorf("snapshot %q is not containerd's", key)
	}
	ctx = namespaces.WithNamespace(ctx, namespace)
	answer, err := containers.NewContainersClient(p.conn).Get(ctx, &containers.GetContainerRequest{ID: name})
	if err != nil {
		return program, err
	}
	c := answer.GetContainer()
	if got := c.GetSnapshotKey(); got != name {
		return program, fmt.Errorf("container %s has snapshot %q", name, got)
	}
	text := c.GetSpec().GetValue()
	if len(text) > maxSpec {
		return program, fmt.Errorf("the spec of container %s has %d bytes, more than the limit of %d", name, len(text),
			maxSpec)
	}
	var spec struct {
		Process struct {
			Args, Env []string
			Cwd       string
		}
	}
	if err := json.Unmarshal(text, &spec); err != nil {
		return program, fmt.Errorf("read the spec of container %s: %w", name, err)
	}
	if len(spec.Process.Args) == 0 {
		return program, fmt.Errorf("container %s runs nothing", name)
	}
	return guess.ConfigOfProgram(spec.Process.Args, spec.Process.Env, spec.Process.Cwd), nil
}

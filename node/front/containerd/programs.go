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
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc"

	"lighter/format/guess"
)

const (
	// programTime bounds the time for a container's program. Later it runs already.
	programTime = 2 * time.Second
	// maxPrograms bounds the containers whose programs are looked up at a time. Those of others are
	// not looked up.
	maxPrograms = 16
)

// Programs looks up what containers run, in containerd, before they run it. It is safe for
// concurrent use.
type Programs struct {
	conn *grpc.ClientConn
	note func(chain string, program guess.Config)
	log  *slog.Logger

	ctx   context.Context // ends with Close
	stop  context.CancelFunc
	slots chan struct{}
	work  sync.WaitGroup
}

// OpenPrograms returns the programs of the containerd that listens on a Unix socket. It does not
// connect yet. note is called with the program of a container, and the lazy chain below it.
func OpenPrograms(socket string, note func(chain string, program guess.Config), log *slog.Logger) (*Programs, error) {
	conn, err := dial(socket)
	if err != nil {
		return nil, err
	}
	p := &Programs{conn: conn, note: note, log: log, slots: make(chan struct{}, maxPrograms)}
	p.ctx, p.stop = context.WithCancel(context.Background())
	return p, nil
}

// Close ends all lookups, and closes the connection to containerd.
func (p *Programs) Close() error {
	p.stop()
	p.work.Wait()
	return p.conn.Close()
}

// NoteMounts is a Config.NoteMounts. It looks up the container of a snapshot in the background.
// Containerd also asks for mounts before there is a container: to read the image's users, and to
// unpack layers.
func (p *Programs) NoteMounts(key, chain string) {
	select {
	case p.slots <- struct{}{}:
	default:
		return
	}
	p.work.Go(func() {
		defer func() { <-p.slots }()
		program, err := p.of(key)
		if err != nil {
			p.log.Debug("it is not known what a container runs", "snapshot", key, "err", err)
			return
		}
		p.note(chain, program)
	})
}

// of returns what the container of an active snapshot runs. Containerd's clients give a container
// and its snapshot the same name.
func (p *Programs) of(key string) (program guess.Config, err error) {
	namespace, rest, _ := strings.Cut(key, "/") // NAMESPACE/NUMBER/NAME: containerd has made it
	_, name, found := strings.Cut(rest, "/")
	if !found {
		return program, fmt.Errorf("snapshot %q is not containerd's", key)
	}
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(p.ctx, namespace), programTime)
	defer cancel()
	answer, err := containers.NewContainersClient(p.conn).Get(ctx, &containers.GetContainerRequest{ID: name})
	if err != nil {
		return program, err
	}
	c := answer.Container
	if c.SnapshotKey != name {
		return program, fmt.Errorf("container %s has snapshot %q", c.ID, c.SnapshotKey)
	}
	var spec struct{ Process *specs.Process }
	if err := json.Unmarshal(c.Spec.GetValue(), &spec); err != nil {
		return program, fmt.Errorf("read the spec of container %s: %w", c.ID, err)
	}
	if spec.Process == nil || len(spec.Process.Args) == 0 {
		return program, fmt.Errorf("container %s runs nothing", c.ID)
	}
	return guess.Config{Cmd: spec.Process.Args, Env: spec.Process.Env, WorkingDir: spec.Process.Cwd}, nil
}

package blobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/pkg/identifiers"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"lighter/durable"
	"lighter/node/flight"
	"lighter/node/layerblob"
	"lighter/node/mount"
)

// Config is the configuration of Blobs. All fields but Namespaces are required.
type Config struct {
	Root   string // the node's root
	Socket string // containerd's Unix socket
	// Namespaces are the namespaces of containerd that have the layers of lazy images. Without any,
	// the links of earlier daemons are removed.
	Namespaces []string

	Layers    *layerblob.Reader
	Leftovers *durable.Leftovers
	Log       *slog.Logger
}

// CheckNamespace returns an error unless a name is valid for a namespace of containerd.
func CheckNamespace(name string) error {
	if err := identifiers.Validate(name); err != nil {
		return fmt.Errorf("%q is no namespace of containerd", name)
	}
	return nil
}

// Blobs has the layers of lazy images of one node. It is safe for concurrent use.
type Blobs struct {
	config  Config
	started time.Time
	life    context.Context // of fetches
	end     context.CancelFunc
	flights flight.Group[string] // by layer
	slots   chan struct{}        // has an element for each layer that is being fetched
	conn    *grpc.ClientConn
	shown   bool           // the file system is mounted; set before Run
	cleaned contents       // from which unfinished layers of earlier daemons were removed; Show's, then Run's
	tasks   sync.WaitGroup // fetches
	wake    chan struct{}  // ends Run's pause between two connections; has room for one element

	mu     sync.Mutex // guards what follows
	stored stored
	status Status
	begun  chan struct{}      // closed while there is a session with containerd
	gone   map[name]time.Time // layers that no hub has, and until when no link is made for them
}

// Status is the state of Blobs.
type Status struct {
	Namespaces []string `json:"namespaces"`
	Links      int      `json:"links"`             // layers that are not fetched
	Unknown    int      `json:"unknown"`           // layers that containerd lacks, and that no hub has
	Fetching   int      `json:"fetching"`          // layers that are being fetched, or wait for it
	Fetched    int64    `json:"fetched"`           // layers since the node started
	Bytes      int64    `json:"bytes"`             // of the fetched layers
	Failures   int64    `json:"failures"`          // fetches that have failed
	Failure    string   `json:"failure,omitempty"` // the last one
	// Problem is why containerd does not have the layers now.
	Problem string `json:"problem,omitempty"`
}

// stored is the file that says where links may be.
type stored struct {
	Contents contents `json:"contents"`
	Socket   string   `json:"socket"` // containerd's
}

func storedFile(root string) string { return filepath.Join(root, "blobs.json") }

// mountPoint is where the file system is mounted.
func mountPoint(root string) string { return filepath.Join(root, "blobs") }

// readStored reads the file. It is empty if no link was ever made.
func readStored(root string) (s stored, err error) {
	text, err := os.ReadFile(storedFile(root))
	if errors.Is(err, os.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		err = fmt.Errorf("read where the links to layers are: %w", err)
	}
	return s, err
}

// New reads where earlier daemons have made links. It does not connect to containerd yet.
func New(c Config) (*Blobs, error) {
	b := &Blobs{config: c, started: time.Now(), slots: make(chan struct{}, maxFetches),
		wake: make(chan struct{}, 1), begun: make(chan struct{}), gone: map[name]time.Time{}}
	b.life, b.end = context.WithCancel(context.Background())
	b.status.Namespaces = c.Namespaces
	var err error
	if b.stored, err = readStored(c.Root); err != nil {
		c.Leftovers.Note(storedFile(c.Root), err) // it is written again
	}
	if c.Socket == "" {
		return b, nil
	}
	b.conn, err = dial(c.Socket)
	return b, err
}

func dial(socket string) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("connect to containerd at %s: %w", socket, err)
	}
	return conn, nil
}

// isOn reports whether containerd shall have layers.
func (b *Blobs) isOn() bool { return len(b.config.Namespaces) > 0 && b.conn != nil }

// Show mounts the file system, and removes what a previous daemon has mounted. A node without it is
// still useful, so a failure is logged and is in the status.
func (b *Blobs) Show() {
	err := b.show()
	if b.shown = err == nil; b.shown {
		return
	}
	b.setProblem(err)
	b.config.Log.Error("containerd cannot have the layers of lazy images: start the node again once this is repaired",
		"err", err)
}

func (b *Blobs) show() error {
	root, dir := b.config.Root, mountPoint(b.config.Root)
	if err := mount.DetachBlobs(root, dir); err != nil {
		return err
	}
	if !b.isOn() {
		return nil
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("make the directory of layers: %w", err)
	}
	if in := b.stored.Contents; in != "" {
		b.clean(in) // before a layer is fetched there
	}
	fd, err := mount.MountBlobs(root, dir)
	if err != nil {
		return err
	}
	if err := b.serve(fd); err != nil {
		return errors.Join(err, mount.DetachBlobs(root, dir))
	}
	return nil
}

// clean removes the unfinished layers of earlier daemons.
func (b *Blobs) clean(in contents) {
	b.cleaned = in
	b.config.Leftovers.Remove(in.scratch())
}

// Close ends all fetches, and unmounts the file system. The links stay, for the next daemon.
func (b *Blobs) Close() error {
	err := mount.DetachBlobs(b.config.Root, mountPoint(b.config.Root))
	b.end()
	b.tasks.Wait()
	if b.conn != nil {
		err = errors.Join(err, b.conn.Close())
	}
	return err
}

// Status returns the state, or nil if no namespace is configured.
func (b *Blobs) Status() *Status {
	if len(b.config.Namespaces) == 0 {
		return nil
	}
	b.mu.Lock()
	s, in := b.status, b.stored.Contents
	b.mu.Unlock()
	if all, err := in.links(); err == nil && in != "" {
		s.Links = len(all)
	}
	return &s
}

// count changes the status.
func (b *Blobs) count(change func(*Status)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change(&b.status)
}

// setProblem sets why containerd does not have the layers now; nil: it has them.
func (b *Blobs) setProblem(err error) {
	b.count(func(s *Status) {
		s.Problem = ""
		if err != nil {
			s.Problem = err.Error()
		}
	})
}

// where returns containerd's content store.
func (b *Blobs) where() (contents, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stored.Contents == "" {
		return "", errors.New("containerd has not said yet where its content store is")
	}
	return b.stored.Contents, nil
}

// keepWhere stores where containerd's content store is, before the first link is made there.
func (b *Blobs) keepWhere(in contents) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := stored{Contents: in, Socket: b.config.Socket}
	if b.stored == now {
		return nil
	}
	text, err := json.Marshal(now)
	if err == nil {
		err = durable.Replace(storedFile(b.config.Root), text)
	}
	b.config.Leftovers.Note(storedFile(b.config.Root), err)
	if err == nil {
		b.stored = now
	}
	return err
}

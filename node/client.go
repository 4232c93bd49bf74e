package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"lighter/node/takeover"
)

// Control speaks to the daemon that uses a root.
type Control struct {
	root string
	http *http.Client
}

// NewControl returns a client for the daemon with that root.
func NewControl(root string) *Control {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", ControlSocket(root))
	}
	return &Control{root: root, http: &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}}
}

// ErrNoDaemon says that no daemon runs with that root.
var ErrNoDaemon = errors.New("no lighter node is running")

// ErrNotMounted says that the daemon has mounted nothing there.
var ErrNotMounted = errors.New("not mounted by lighter")

// notFound says that the daemon does not have what was asked for.
type notFound struct{ said string }

func (e *notFound) Error() string { return e.said }

func (c *Control) call(ctx context.Context, method, path string, request, answer any) error {
	body, err := c.ask(ctx, method, path, request)
	if err != nil {
		return err
	}
	defer body.Close()
	return json.NewDecoder(body).Decode(answer)
}

// ask returns the answer's body, or the error that the node answers with.
func (c *Control) ask(ctx context.Context, method, path string, request any) (io.ReadCloser, error) {
	if err := checkRootPath(c.root); err != nil {
		return nil, err
	}
	body, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://control"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	res, err := c.http.Do(req)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("%s is root's alone: run this as root (try sudo)", ControlSocket(c.root))
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("%w with root %s: start it, or say --root", ErrNoDaemon, c.root)
	case err != nil:
		return nil, fmt.Errorf("ask the node: %w", err)
	}
	if res.StatusCode != http.StatusOK {
		defer res.Body.Close()
		var said struct{ Error string }
		if err := json.NewDecoder(res.Body).Decode(&said); err != nil || said.Error == "" {
			said.Error = res.Status
		}
		if res.StatusCode == http.StatusNotFound {
			return nil, &notFound{said.Error}
		}
		return nil, errors.New(said.Error)
	}
	return res.Body, nil
}

// Status asks what the node says of itself.
func (c *Control) Status(ctx context.Context) (Status, error) {
	var s Status
	return s, c.call(ctx, http.MethodGet, "/status", nil, &s)
}

// Images asks what the node says of the images that a word stands for, of which
// there is at least one.
func (c *Control) Images(ctx context.Context, word string) ([]ImageDetail, error) {
	var details []ImageDetail
	return details, c.call(ctx, http.MethodGet, "/status/images?name="+url.QueryEscape(word), nil, &details)
}

// Cache asks what the cache has.
func (c *Control) Cache(ctx context.Context) (CacheStatus, error) {
	var s CacheStatus
	return s, c.call(ctx, http.MethodGet, "/cache", nil, &s)
}

// Prune empties the cache of all that is not pinned.
func (c *Control) Prune(ctx context.Context) (CacheFreed, error) {
	var f CacheFreed
	return f, c.call(ctx, http.MethodPost, "/cache/prune", nil, &f)
}

// Scrub verifies all that is in the cache.
func (c *Control) Scrub(ctx context.Context) (CacheScrubbed, error) {
	var s CacheScrubbed
	return s, c.call(ctx, http.MethodPost, "/cache/scrub", nil, &s)
}

// Pin keeps the chunks of an image in the cache, as far as they are there and as
// they come. name is a reference, a chain or a tree, as the status shows them.
func (c *Control) Pin(ctx context.Context, name string) (CacheStatus, error) {
	var s CacheStatus
	return s, c.call(ctx, http.MethodPost, "/cache/pin", cacheRequest{name}, &s)
}

// Unpin undoes Pin.
func (c *Control) Unpin(ctx context.Context, name string) (CacheStatus, error) {
	var s CacheStatus
	return s, c.call(ctx, http.MethodPost, "/cache/unpin", cacheRequest{name}, &s)
}

// Evict frees what only this image has of the cache.
func (c *Control) Evict(ctx context.Context, name string) (CacheFreed, error) {
	var f CacheFreed
	return f, c.call(ctx, http.MethodPost, "/cache/evict", cacheRequest{name}, &f)
}

// Fetch brings all of an image into the cache, and tells how far it is.
func (c *Control) Fetch(ctx context.Context, name string, tell func(CacheFetched)) error {
	body, err := c.ask(ctx, http.MethodPost, "/cache/fetch", cacheRequest{name})
	if err != nil {
		return err
	}
	defer body.Close()
	last := CacheFetched{Error: "the node ended meanwhile"}
	for lines := json.NewDecoder(body); lines.More(); {
		last = CacheFetched{}
		if err := lines.Decode(&last); err != nil {
			return fmt.Errorf("ask the node: %w", err)
		}
		tell(last)
	}
	if last.Error == "" && last.Here < last.All {
		last.Error = "the node ended meanwhile"
	}
	if last.Error != "" {
		return errors.New(last.Error)
	}
	return nil
}

// Record has the next start of an image recorded, whether the node records starts
// or not, and tells how far that is. The trace goes to a hub, or, if text is true,
// to the caller alone.
func (c *Control) Record(ctx context.Context, name string, text bool, tell func(TraceRecorded)) error {
	body, err := c.ask(ctx, http.MethodPost, "/trace/record", recordRequest{name, text})
	if err != nil {
		return err
	}
	defer body.Close()
	last := TraceRecorded{}
	for lines := json.NewDecoder(body); lines.More(); {
		last = TraceRecorded{}
		if err := lines.Decode(&last); err != nil {
			return fmt.Errorf("ask the node: %w", err)
		}
		tell(last)
	}
	switch {
	case last.Error != "":
		return errors.New(last.Error)
	case !last.Over:
		return errors.New("the node ended meanwhile")
	}
	return nil
}

// Mount mounts the tree of an image that the hub has at dir.
func (c *Control) Mount(ctx context.Context, name, platform, dir string) error {
	var b Bind
	return c.call(ctx, http.MethodPost, "/mount", bindRequest{name, platform, dir}, &b)
}

// Unmount undoes Mount. ErrNotMounted: this daemon has mounted nothing there.
func (c *Control) Unmount(ctx context.Context, dir string) error {
	var none struct{}
	err := c.call(ctx, http.MethodPost, "/unmount", bindRequest{Dir: dir}, &none)
	if gone := (*notFound)(nil); errors.As(err, &gone) {
		return fmt.Errorf("unmount %s: %w", dir, ErrNotMounted)
	}
	return err
}

// Stop ends the daemon and returns when it has ended, or ctx has.
func (c *Control) Stop(ctx context.Context) error {
	var none struct{}
	if err := c.call(ctx, http.MethodPost, "/stop", nil, &none); err != nil {
		return err
	}
	lock, err := os.Open(takeover.LockFile(c.root))
	if err != nil {
		return fmt.Errorf("wait for the node: %w", err)
	}
	defer lock.Close()
	if err := flock(ctx, lock, unix.LOCK_SH); err != nil {
		return fmt.Errorf("wait for the node: %w", err)
	}
	return nil
}

// flock locks a file, or gives up when ctx is done.
func flock(ctx context.Context, file *os.File, how int) error {
	for {
		err := unix.Flock(int(file.Fd()), how|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Running tells whether a daemon uses the root.
func Running(root string) bool {
	conn, err := net.Dial("unix", ControlSocket(root))
	if err != nil {
		return errors.Is(err, os.ErrPermission)
	}
	conn.Close()
	return true
}

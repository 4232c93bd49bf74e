package control

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
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"lighter/buildinfo"
	"lighter/durable"
	"lighter/node/binds"
	"lighter/node/completion"
	"lighter/node/imagecache"
	"lighter/node/ondemand"
	"lighter/node/preheat"
	"lighter/node/report"
	"lighter/node/takeover"
)

var (
	// ErrNoDaemon says that no daemon runs with the client's root.
	ErrNoDaemon = errors.New("no lighter node is running")
	// ErrNotMounted says that the daemon has mounted nothing at a directory.
	ErrNotMounted = errors.New("not mounted by lighter")

	errEnded = errors.New("the node ended before it had answered")
)

// notFound is the error if the daemon does not know the image or the directory of a request.
type notFound struct{ message string }

func (e *notFound) Error() string { return e.message }

// Client sends requests to the daemon that uses a root. It is safe for concurrent use.
type Client struct {
	root string
	http *http.Client
}

// New returns a client for the daemon with that root.
func New(root string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", Socket(root))
	}
	transport := &http.Transport{DialContext: dial, DisableKeepAlives: true}
	return &Client{root: root, http: &http.Client{Transport: transport}}
}

// Running reports whether a daemon uses the root. If this process has no permission to find out,
// Running returns true, and the next request reports the missing permission.
func Running(root string) bool {
	conn, err := net.Dial("unix", Socket(root))
	if err != nil {
		return errors.Is(err, os.ErrPermission)
	}
	conn.Close()
	return true
}

// send sends a request. It returns the daemon's answer, or the error that the answer contains.
func (c *Client) send(ctx context.Context, method, path string, r request) (*http.Response, error) {
	if err := CheckRoot(c.root); err != nil {
		return nil, err
	}
	body, err := json.Marshal(r)
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
		return nil, fmt.Errorf("only root may use %s: run this as root (try sudo)", Socket(c.root))
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("%w with root %s: start it, or choose another --root", ErrNoDaemon, c.root)
	case err != nil:
		return nil, fmt.Errorf("ask the node: %w", err)
	}
	if res.StatusCode == http.StatusOK {
		return res, nil
	}
	defer res.Body.Close()
	var failed struct{ Error string }
	if err := json.NewDecoder(res.Body).Decode(&failed); err != nil || failed.Error == "" {
		return nil, explain(fmt.Errorf("ask the node: %s %s: %s", method, path, res.Status), res)
	}
	if res.StatusCode == http.StatusNotFound {
		return nil, &notFound{failed.Error}
	}
	return nil, errors.New(failed.Error)
}

// explain adds a note to err if the node that sent res has another version than this program: both
// ends of the socket must have the same version.
func explain(err error, res *http.Response) error {
	theirs, ours := res.Header.Get(versionHeader), buildinfo.Release()
	if theirs == ours {
		return err
	}
	return fmt.Errorf("%w (the node is version %s, and this program is %s: restart the node)", err, theirs, ours)
}

// ask sends a request that has one answer, and returns the answer.
func ask[T any](ctx context.Context, c *Client, method, path string, r request) (value T, err error) {
	res, err := c.send(ctx, method, path, r)
	if err != nil {
		return value, err
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(&value); err != nil {
		return value, explain(fmt.Errorf("ask the node: %s %s: %w", method, path, err), res)
	}
	return value, nil
}

// follow sends a request whose answer is a stream, and calls progress for each report in it.
func follow[T any](ctx context.Context, c *Client, path string, r request, progress func(T)) error {
	res, err := c.send(ctx, http.MethodPost, path, r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	lines := json.NewDecoder(res.Body)
	for {
		var u update[T]
		switch err := lines.Decode(&u); {
		case errors.Is(err, io.EOF):
			return errEnded
		case err != nil:
			return explain(fmt.Errorf("ask the node: %w", err), res)
		case u.Error != "":
			return errors.New(u.Error)
		case u.Done:
			return nil
		}
		progress(u.Progress)
	}
}

// Status returns the state of the node.
func (c *Client) Status(ctx context.Context) (report.Status, error) {
	return ask[report.Status](ctx, c, http.MethodGet, "/status", request{})
}

// Images returns the images that word names (see report.Reporter.Images). If word names no image,
// Images fails.
func (c *Client) Images(ctx context.Context, word string) ([]report.ImageDetail, error) {
	return ask[[]report.ImageDetail](ctx, c, http.MethodPost, "/status/images", request{Name: word})
}

// Cache returns the state of the cache.
func (c *Client) Cache(ctx context.Context) (imagecache.Status, error) {
	return ask[imagecache.Status](ctx, c, http.MethodGet, "/cache", request{})
}

// Prune evicts all chunks that are not pinned.
func (c *Client) Prune(ctx context.Context) (imagecache.Freed, error) {
	return ask[imagecache.Freed](ctx, c, http.MethodPost, "/cache/prune", request{})
}

// Scrub verifies everything in the cache.
func (c *Client) Scrub(ctx context.Context) (imagecache.Scrubbed, error) {
	return ask[imagecache.Scrubbed](ctx, c, http.MethodPost, "/cache/scrub", request{})
}

// Pin keeps the chunks of an image in the cache: those that are cached, and those that arrive
// later. name is a reference, a chain or a tree, as the status shows them.
func (c *Client) Pin(ctx context.Context, name string) (imagecache.Status, error) {
	return ask[imagecache.Status](ctx, c, http.MethodPost, "/cache/pin", request{Name: name})
}

// Unpin undoes Pin.
func (c *Client) Unpin(ctx context.Context, name string) (imagecache.Status, error) {
	return ask[imagecache.Status](ctx, c, http.MethodPost, "/cache/unpin", request{Name: name})
}

// Evict evicts the chunks of the named image that no other image on this machine has.
func (c *Client) Evict(ctx context.Context, name string) (imagecache.Freed, error) {
	return ask[imagecache.Freed](ctx, c, http.MethodPost, "/cache/evict", request{Name: name})
}

// Fetch fetches all chunks of an image into the cache, and reports its progress.
func (c *Client) Fetch(ctx context.Context, name string, progress func(completion.Progress)) error {
	return follow(ctx, c, "/cache/fetch", request{Name: name}, progress)
}

// Preheat fetches the chunks of an image's startup packs into the cache, or all of its chunks, and
// reports its progress. The image need not have been pulled.
func (c *Client) Preheat(ctx context.Context, name, platform string, all bool, progress func(preheat.Progress)) error {
	return follow(ctx, c, "/cache/preheat", request{Name: name, Platform: platform, All: all}, progress)
}

// Record records the next start of an image, even if the node does not record starts, and reports
// its progress. If text is false, the node sends the trace to a hub. If text is true, the trace is
// in the last report, and is not sent.
func (c *Client) Record(ctx context.Context, name string, text bool, progress func(ondemand.Progress)) error {
	return follow(ctx, c, "/trace/record", request{Name: name, Text: text}, progress)
}

// Mount mounts an image of the hub at dir. platform may be empty if the image has only one
// platform.
func (c *Client) Mount(ctx context.Context, name, platform, dir string) error {
	_, err := ask[binds.Bind](ctx, c, http.MethodPost, "/mount", request{Name: name, Platform: platform, Dir: dir})
	return err
}

// Start mounts an image of the hub at dir for a container, and returns the image's config. The
// error wraps binds.ErrNoImage if the hub has no image of that name. Unmount undoes Start, too.
func (c *Client) Start(ctx context.Context, name, platform, dir string) (binds.Started, error) {
	started, err := ask[binds.Started](ctx, c, http.MethodPost, "/start", request{Name: name, Platform: platform,
		Dir: dir})
	if gone := (*notFound)(nil); errors.As(err, &gone) {
		return started, noImage{gone}
	}
	return started, err
}

// noImage is a notFound that wraps binds.ErrNoImage.
type noImage struct{ *notFound }

func (noImage) Is(target error) bool { return target == binds.ErrNoImage }

// Unmount undoes Mount. If this daemon has mounted nothing there, the error is ErrNotMounted.
func (c *Client) Unmount(ctx context.Context, dir string) error {
	_, err := ask[none](ctx, c, http.MethodPost, "/unmount", request{Dir: dir})
	if gone := (*notFound)(nil); errors.As(err, &gone) {
		return fmt.Errorf("unmount %s: %w", dir, ErrNotMounted)
	}
	return err
}

// Stop ends the daemon. It returns when the daemon has ended or ctx is done.
func (c *Client) Stop(ctx context.Context) error {
	if _, err := ask[none](ctx, c, http.MethodPost, "/stop", request{}); err != nil {
		return err
	}
	lock, err := os.Open(takeover.LockFile(c.root))
	if err != nil {
		return fmt.Errorf("wait for the node to end: %w", err)
	}
	defer lock.Close()
	if err := durable.Flock(ctx, lock, unix.LOCK_SH); err != nil {
		return fmt.Errorf("wait for the node to end: %w", err)
	}
	return nil
}

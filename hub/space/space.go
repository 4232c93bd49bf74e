// Package space keeps a reserve of free bytes on the hub's disks. While a disk has less, the hub
// takes no uploads and ingests nothing, but serves what it has. The reserve is for the catalog, and
// for work that frees space. Other programs can use up the reserve, too. So the hub also has a file
// whose bytes it can free (Spare).
//
// The free bytes are checked before each upload and each job, and repeatedly while an upload or a
// job runs. So a fast writer may use a part of the reserve before it is stopped.
package space

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"time"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"

	"lighter/hub/jobs"
)

const (
	// A job begins only if startEighths/8 of the reserve are free, so that it is not stopped soon
	// after.
	startEighths = 10
	watchEvery   = time.Second // the interval in which the disks are checked during a job
	// Without room, a job is tried again after pause. A job that was stopped has lost its work, so
	// it is tried again only after stoppedPause.
	pause, stoppedPause = 30 * time.Second, 5 * time.Minute
	// An upload checks the disks again after each checkBytes.
	checkBytes = 16 << 20
)

// Dir is a directory of the hub, with its name for users and metrics.
type Dir struct{ Name, Path string }

// Reserve is the bytes that have to be free on the disks of some directories. It is safe for
// concurrent use.
type Reserve struct {
	bytes int64
	dirs  []Dir
	free  func(Dir) (int64, error) // Dir.Free; tests have another one
}

// New returns a reserve of free bytes on the disks of dirs. With 0 bytes nothing is refused.
func New(bytes int64, dirs ...Dir) *Reserve { return &Reserve{bytes, dirs, Dir.Free} }

// Bytes returns the reserve.
func (r *Reserve) Bytes() int64 { return r.bytes }

// Dirs returns the directories.
func (r *Reserve) Dirs() []Dir { return r.dirs }

// LowError means that a disk has less free bytes than the reserve.
type LowError struct {
	Dir           Dir
	Free, Reserve int64 // bytes
}

func (e *LowError) Error() string {
	return fmt.Sprintf("the hub's disk is nearly full: %s of %s (%s) are free, and %s are the reserve (disk_reserve): "+
		"remove images, or make the disk larger", humanize.IBytes(uint64(e.Free)), e.Dir.Name, e.Dir.Path,
		humanize.IBytes(uint64(e.Reserve)))
}

// Free returns the bytes that are free for the hub on the disk of a directory.
func (d Dir) Free() (int64, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(d.Path, &fs); err != nil {
		return 0, fmt.Errorf("free space of %s: %w", d.Path, err)
	}
	return int64(fs.Bavail) * int64(fs.Bsize), nil
}

// Check returns a *LowError if a disk has less free bytes than the reserve.
func (r *Reserve) Check() error { return r.check(r.bytes) }

// Room returns a *LowError if a disk would have less free bytes than the reserve after this many
// more bytes were written.
func (r *Reserve) Room(bytes int64) error {
	if r.bytes == 0 {
		return nil
	}
	return r.check(r.bytes + bytes)
}

func (r *Reserve) check(want int64) error {
	if want <= 0 {
		return nil
	}
	for _, d := range r.dirs {
		free, err := r.free(d)
		if err != nil {
			return err
		}
		if free < want {
			return &LowError{d, free, r.bytes}
		}
	}
	return nil
}

// Job returns run with checks of the reserve. Without room, run is not called. When the reserve is
// used while run works, the context of run ends. In both cases the job is tried again later.
func (r *Reserve) Job(run jobs.Run) jobs.Run {
	return func(ctx context.Context, j *jobs.Running) error {
		if err := r.check(r.bytes / 8 * startEighths); err != nil {
			return &jobs.RetryError{Err: err, After: pause}
		}
		watched, stop := context.WithCancelCause(ctx)
		done := make(chan struct{})
		go func() { defer close(done); r.watch(watched, stop) }()
		err := run(watched, j)
		low := (*LowError)(nil)
		if errors.As(context.Cause(watched), &low) && err != nil && ctx.Err() == nil {
			err = &jobs.RetryError{Err: low, After: stoppedPause}
		}
		stop(nil)
		<-done
		return err
	}
}

// watch waits until a disk has less free bytes than the reserve, and calls stop; or until ctx ends.
func (r *Reserve) watch(ctx context.Context, stop context.CancelCauseFunc) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if low := (*LowError)(nil); errors.As(r.Check(), &low) {
			stop(low)
			return
		}
	}
}

var uploadPath = regexp.MustCompile(`^/v2/.+/blobs/uploads/`)

// Uploads passes requests to a registry. While there is no room, uploads get status 507 instead.
func (r *Reserve) Uploads(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		isUpload := req.Method != http.MethodGet && req.Method != http.MethodHead && req.Method != http.MethodDelete &&
			uploadPath.MatchString(req.URL.Path)
		if isUpload && r.bytes > 0 {
			if err := r.Check(); err != nil {
				refuse(w, err)
				return
			}
			req.Body = &body{ReadCloser: req.Body, reserve: r}
		}
		next.ServeHTTP(w, req)
	})
}

// refuse sends an error as a registry does.
func refuse(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusInsufficientStorage)
	_ = json.NewEncoder(w).Encode(map[string]any{ // an error means that the client has gone
		"errors": []map[string]string{{"code": "DENIED", "message": err.Error()}}})
}

// body is the body of an upload. It ends with an error when the room is used up.
type body struct {
	io.ReadCloser
	reserve *Reserve
	read    int64 // bytes since the last check
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	if b.read >= checkBytes {
		b.read = 0
		if err := b.reserve.Check(); err != nil {
			return 0, err
		}
	}
	n, err := b.ReadCloser.Read(p)
	b.read += int64(n)
	return n, err
}

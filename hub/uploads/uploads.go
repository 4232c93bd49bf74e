// Package uploads splits layers while clients push them. So an image is ready soon after its push
// has ended, and not only when all of its layers were read once more.
//
// A Splitter is a handler in front of a registry. It copies the bytes of each upload to a file in
// the hub's scratch directory, and splits what has arrived, as fast as it can. The upload itself
// never waits for that. When the registry has accepted the blob, and the blob has the digest of
// what was split, the layer is published. Images with this blob then have nothing to split.
//
// In front of another registry (Config.Hold), the layer is published only after it was admitted: a
// published layer may become readable to everybody who knows its digest. A layer that nobody admits
// in time is dropped.
//
// Anything else costs only time, because the image's job splits the layers that are missing: an
// upload that is not a layer, goes on at another process, or was begun before this one; a registry
// that refuses it; too many uploads; no room on the disk; a restart.
//
// Hazard: a layer that no image ever has stays until the next collection.
package uploads

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"lighter/hub/ingest"
)

const (
	// minBytes is the size from which on an upload is split before it ends. Smaller layers, configs
	// and other blobs cost the image's job next to nothing.
	minBytes = 1 << 20
	// maxUploads bounds the uploads that are copied at a time; maxSplits, those that are split.
	// Each split takes about 20 MB of memory.
	maxUploads = 32
	maxSplits  = 4
	// maxHeld bounds the layers that were split and wait to be admitted.
	maxHeld = 256
	// maxBytes bounds the files of all uploads, in bytes. A layer that waits to be admitted counts
	// with the bytes of its upload.
	maxBytes = 16 << 30
	// roomBytes is after how many bytes of an upload the disk is looked at again.
	roomBytes = 16 << 20
	// idleTime is how long an upload without a request is remembered.
	idleTime = 5 * time.Minute
	// stallTime is how long an upload may be without a request before it makes room for others that
	// are to be split. Images wait for these.
	stallTime = 5 * time.Second
	// reportEvery is how often Wait reports progress.
	reportEvery = 100 * time.Millisecond
)

// Config says what a Splitter needs.
type Config struct {
	Ingester *ingest.Ingester
	Dir      string       // of the copies
	Room     func() error // returns an error if the disk has no room for copies
	Bounds   *Bounds
	// Hold is how long a layer waits for Admit. 0: layers need not be admitted.
	Hold time.Duration
	Log  *slog.Logger
}

// Bounds bounds the work of all domains of a process.
type Bounds struct {
	uploads *semaphore.Weighted
	splits  *places
	held    *semaphore.Weighted
	bytes   *semaphore.Weighted
}

// NewBounds returns the bounds of a process.
func NewBounds() *Bounds {
	return &Bounds{uploads: semaphore.NewWeighted(maxUploads), bytes: semaphore.NewWeighted(maxBytes),
		held:   semaphore.NewWeighted(maxHeld),
		splits: newPlaces(int64(min(runtime.GOMAXPROCS(0), maxSplits)))}
}

// Splitter splits layers while clients push them. It implements ingest.Early, and is safe for
// concurrent use.
type Splitter struct {
	// MinBytes is minBytes. It is set before use.
	MinBytes int64

	config Config
	life   context.Context
	end    context.CancelFunc
	tasks  sync.WaitGroup

	mu      sync.Mutex         // guards the following
	uploads map[string]*upload // by their IDs
	ending  map[string]*upload // by the digests of blobs whose last bytes have been sent, or that were admitted
	held    map[blob]*upload   // those that are not admitted
}

// blob is a blob of a repository.
type blob struct{ repository, digest string }

var _ ingest.Early = (*Splitter)(nil)

// New returns a splitter, whose work ends with ctx. The caller calls Close.
func New(ctx context.Context, c Config) *Splitter {
	s := &Splitter{MinBytes: minBytes, config: c, uploads: map[string]*upload{}, ending: map[string]*upload{},
		held: map[blob]*upload{}}
	s.life, s.end = context.WithCancel(ctx)
	return s
}

// Close ends the work.
func (s *Splitter) Close() error {
	s.end()
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.uploads))
	s.mu.Unlock()
	for _, u := range all {
		u.drop(context.Canceled)
	}
	s.tasks.Wait()
	return nil
}

// Splits implements ingest.Early.
func (s *Splitter) Splits(digest string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ending[digest] != nil
}

// Wait implements ingest.Early.
func (s *Splitter) Wait(ctx context.Context, digest string, onRead func(n int)) {
	s.mu.Lock()
	u := s.ending[digest]
	s.mu.Unlock()
	if u == nil {
		return
	}
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	for reported := int64(0); ; {
		select {
		case <-u.done:
			return
		case <-ctx.Done():
			return
		case <-tick.C:
			read := u.read.Load()
			onRead(int(read - reported))
			reported = read
		}
	}
}

// Admit allows to publish the layers with these digests that were pushed to a repository. Layers
// that are still being split are published at the end of that.
func (s *Splitter) Admit(repository string, digests []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, digest := range digests {
		u := s.held[blob{repository, digest}]
		if u == nil {
			continue
		}
		delete(s.held, blob{repository, digest})
		close(u.admitted)
		s.setEndingLocked(u, digest)
	}
}

// uploadPath matches the path of an upload: its repository and its ID.
var uploadPath = regexp.MustCompile(`^/v2/.+/blobs/uploads/[^/]+$`)

// Handler passes all requests to the handler of a registry.
func (s *Splitter) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !uploadPath.MatchString(req.URL.Path) {
			next.ServeHTTP(w, req)
			return
		}
		s.Pass(w, req, next, "", req.URL.Path)
	})
}

// Pass passes a request of an upload to next, the handler of a registry. Admit names the
// repository. id is the same for all requests of the upload.
func (s *Splitter) Pass(w http.ResponseWriter, req *http.Request, next http.Handler, repository, id string) {
	var u *upload
	if req.Method == http.MethodPatch || req.Method == http.MethodPut {
		u = s.upload(req, id)
	}
	if u == nil {
		next.ServeHTTP(w, req)
		return
	}
	defer u.request()()
	req.Body = &copied{ReadCloser: req.Body, to: u}
	of := blob{repository, req.URL.Query().Get("digest")}
	if req.Method == http.MethodPut && s.config.Hold == 0 {
		s.setEnding(u, of.digest)
	}
	// What the answer means is noted before the client gets it: the client may push the manifest
	// then.
	answer := &answer{ResponseWriter: w, note: func(status int) { s.answered(u, req, id, status, w.Header(), of) }}
	defer answer.end()
	next.ServeHTTP(answer, req)
}

// upload returns the upload of a request, or nil if it is not to be split. It begins a new one if
// the request has the first bytes of a blob.
func (s *Splitter) upload(req *http.Request, id string) *upload {
	s.mu.Lock()
	defer s.mu.Unlock()
	if u := s.uploads[id]; u != nil {
		u.expiry.Stop()
		return u
	}
	if first, _, found := strings.Cut(req.Header.Get("Content-Range"), "-"); found && first != "0" {
		return nil
	}
	if s.life.Err() != nil || req.ContentLength == 0 || s.config.Room() != nil {
		return nil
	}
	if !s.config.Bounds.uploads.TryAcquire(1) {
		return nil
	}
	u, err := s.newUpload()
	if err != nil {
		s.config.Bounds.uploads.Release(1)
		s.config.Log.Warn("a layer is not split while it is pushed", "err", err)
		return nil
	}
	u.expiry = time.AfterFunc(idleTime, func() { s.forget(id, u, errIdle) })
	u.expiry.Stop()
	s.uploads[id] = u
	return u
}

var (
	errIdle    = errors.New("the client has stopped")
	errStalled = errors.New("the client sends nothing, and other uploads wait to be split")
	errRefused = errors.New("the registry has refused the upload, or not received all of it")
	errTwice   = errors.New("the blob was pushed twice")
	errUnnamed = errors.New("no manifest with the layer was admitted")
	errHeld    = errors.New("too many layers wait for their manifests")
)

// setEnding notes that the last bytes of a blob arrive.
func (s *Splitter) setEnding(u *upload, digest string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setEndingLocked(u, digest)
}

func (s *Splitter) setEndingLocked(u *upload, digest string) {
	if s.ending[digest] == nil && !u.gone {
		s.ending[digest] = u
		u.digest = digest
	}
}

// hold notes that a registry has accepted a blob that is to be admitted. It reports false if
// another upload has the same blob.
func (s *Splitter) hold(u *upload, of blob) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[of] != nil || u.gone {
		return false
	}
	s.held[of], u.of = u, of
	return true
}

// answered handles the registry's answer to a request of an upload. A registry that has received
// fewer bytes than were copied, or more, says so.
func (s *Splitter) answered(u *upload, req *http.Request, id string, status int, header http.Header, of blob) {
	switch {
	case req.Method == http.MethodPut && status == http.StatusCreated:
		if s.config.Hold > 0 && !s.hold(u, of) {
			s.forget(id, u, errTwice)
			return
		}
		u.complete(of.digest)
		s.forget(id, u, nil)
	case req.Method == http.MethodPatch && status == http.StatusAccepted && u.hasAll(header.Get("Range")):
		u.expiry.Reset(idleTime)
	default:
		s.forget(id, u, errRefused)
	}
}

// hasAll reports whether a registry that answers with this Range has as many bytes as were copied.
// Some registries do not say it.
func (u *upload) hasAll(rangeHeader string) bool {
	if rangeHeader == "" {
		return true // the digest is checked in the end
	}
	_, last, found := strings.Cut(rangeHeader, "-")
	n, err := strconv.ParseInt(last, 10, 64)
	return found && err == nil && n+1 == u.size()
}

// forget removes an upload. If why is not nil, the upload is dropped.
func (s *Splitter) forget(id string, u *upload, why error) {
	s.mu.Lock()
	if s.uploads[id] == u {
		delete(s.uploads, id)
	}
	u.expiry.Stop()
	s.mu.Unlock()
	if why != nil {
		u.drop(why)
	}
}

// copied is a request's body, whose bytes are copied to an upload.
type copied struct {
	io.ReadCloser
	to *upload
}

// Read reads the next bytes, and copies them.
func (c *copied) Read(b []byte) (int, error) {
	n, err := c.ReadCloser.Read(b)
	c.to.write(b[:n])
	return n, err
}

// answer notes the status of an answer.
type answer struct {
	http.ResponseWriter
	note func(status int) // called once; 0: there was no answer
}

// WriteHeader notes the status.
func (a *answer) WriteHeader(status int) {
	if status >= http.StatusOK { // it is no interim answer
		a.noted(status)
	}
	a.ResponseWriter.WriteHeader(status)
}

func (a *answer) noted(status int) {
	if a.note != nil {
		a.note(status)
		a.note = nil
	}
}

// end is called after the answer.
func (a *answer) end() { a.noted(0) }

// Unwrap returns the answer that is sent.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// All are several splitters, as one ingest.Early.
type All []*Splitter

var _ ingest.Early = All(nil)

// Splits implements ingest.Early.
func (a All) Splits(digest string) bool {
	return slices.ContainsFunc(a, func(s *Splitter) bool { return s.Splits(digest) })
}

// Wait implements ingest.Early.
func (a All) Wait(ctx context.Context, digest string, onRead func(n int)) {
	for _, s := range a {
		s.Wait(ctx, digest, onRead)
	}
}

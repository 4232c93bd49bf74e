package registry

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"sync/atomic"

	"github.com/distribution/distribution/v3/configuration"
	"github.com/distribution/distribution/v3/registry/storage/driver"
	storagemiddleware "github.com/distribution/distribution/v3/registry/storage/driver/middleware"
)

// The library answers 500 whatever the cause is. So a wrapper of the storage (noting) notes the
// storage's failures in the context of the request. The answer to such a request becomes 503, and
// clients try again.

// retrySeconds is the Retry-After of answers with status 503.
const retrySeconds = "5"

// failure is the first failure of the storage while a request is answered.
type failure struct{ err atomic.Pointer[error] }

func (f *failure) set(err error) {
	if f != nil && err != nil {
		f.err.CompareAndSwap(nil, &err)
	}
}

// failureKey is the context key of the *failure of a request.
type failureKey struct{}

func failureOf(ctx context.Context) *failure {
	f, _ := ctx.Value(failureKey{}).(*failure)
	return f
}

// retryable changes an answer of next from status 500 to 503 if the storage has failed while the
// request was answered. It adds Retry-After to all answers with status 503.
func (r *Registry) retryable(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		f := new(failure)
		log := r.log.With("method", req.Method, "path", req.URL.Path)
		next.ServeHTTP(&retryableWriter{ResponseWriter: w, failed: f, log: log},
			req.WithContext(context.WithValue(req.Context(), failureKey{}, f)))
	})
}

type retryableWriter struct {
	http.ResponseWriter
	failed   *failure
	log      *slog.Logger
	replaced bool // 503 was sent, and the library's body is not
}

func (w *retryableWriter) WriteHeader(status int) {
	err := w.failed.err.Load()
	w.replaced = status == http.StatusInternalServerError && err != nil
	if (w.replaced || status == http.StatusServiceUnavailable) && w.Header().Get("Retry-After") == "" {
		w.Header().Set("Retry-After", retrySeconds)
	}
	if !w.replaced {
		w.ResponseWriter.WriteHeader(status)
		return
	}
	w.log.Error("request failed", "err", unavailable(*err))
	unavailableTo(w.ResponseWriter, ErrUnavailable.Error()+"; try again")
}

func (w *retryableWriter) Write(b []byte) (int, error) {
	if w.replaced {
		return len(b), nil
	}
	return w.ResponseWriter.Write(b)
}

// notingName is the name under which the library finds noting.
const notingName = "noting"

func init() { // never fails
	_ = storagemiddleware.Register(notingName,
		func(_ context.Context, next driver.StorageDriver, _ map[string]any) (driver.StorageDriver, error) {
			return noting{next}, nil
		})
}

// withNoting is the library's configuration of noting.
func withNoting() map[string][]configuration.Middleware {
	return map[string][]configuration.Middleware{"storage": {{Name: notingName}}}
}

// noting is a storage that notes its failures in the contexts of requests.
type noting struct{ driver.StorageDriver }

// note notes err if it is a failure of the storage, and returns err. Other errors are answers of
// the storage: a file does not exist, say.
func note(ctx context.Context, err error) error {
	if isOfStorage(err) {
		failureOf(ctx).set(err)
	}
	return err
}

func (n noting) GetContent(ctx context.Context, path string) ([]byte, error) {
	b, err := n.StorageDriver.GetContent(ctx, path)
	return b, note(ctx, err)
}

func (n noting) PutContent(ctx context.Context, path string, content []byte) error {
	return note(ctx, n.StorageDriver.PutContent(ctx, path, content))
}

func (n noting) Reader(ctx context.Context, path string, offset int64) (io.ReadCloser, error) {
	r, err := n.StorageDriver.Reader(ctx, path, offset)
	return r, note(ctx, err)
}

func (n noting) Writer(ctx context.Context, path string, more bool) (driver.FileWriter, error) {
	w, err := n.StorageDriver.Writer(ctx, path, more)
	if err != nil {
		return nil, note(ctx, err)
	}
	return notingWriter{w, failureOf(ctx)}, nil
}

func (n noting) Stat(ctx context.Context, path string) (driver.FileInfo, error) {
	info, err := n.StorageDriver.Stat(ctx, path)
	return info, note(ctx, err)
}

func (n noting) List(ctx context.Context, path string) ([]string, error) {
	names, err := n.StorageDriver.List(ctx, path)
	return names, note(ctx, err)
}

func (n noting) Move(ctx context.Context, from, to string) error {
	return note(ctx, n.StorageDriver.Move(ctx, from, to))
}

func (n noting) Delete(ctx context.Context, path string) error {
	return note(ctx, n.StorageDriver.Delete(ctx, path))
}

func (n noting) Walk(
	ctx context.Context, path string, fn driver.WalkFn, options ...func(*driver.WalkOptions),
) error {
	return note(ctx, n.StorageDriver.Walk(ctx, path, fn, options...))
}

// notingWriter is a file that notes the failures of its storage.
type notingWriter struct {
	driver.FileWriter
	failed *failure
}

func (w notingWriter) Write(b []byte) (int, error) {
	n, err := w.FileWriter.Write(b)
	w.failed.set(err)
	return n, err
}

func (w notingWriter) Close() error {
	err := w.FileWriter.Close()
	w.failed.set(err)
	return err
}

func (w notingWriter) Commit(ctx context.Context) error {
	err := w.FileWriter.Commit(ctx)
	w.failed.set(err)
	return err
}

func (w notingWriter) Cancel(ctx context.Context) error {
	err := w.FileWriter.Cancel(ctx)
	w.failed.set(err)
	return err
}

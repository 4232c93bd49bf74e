package objects

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
)

// Limits of requests to S3, so that each one ends. The SDK makes a request that has failed twice
// more. A body that was opened for reading is not requested again.
const (
	// connectTimeout bounds the connection, and after it the TLS handshake.
	connectTimeout = 10 * time.Second
	// stallTimeout bounds the time in which no byte moves: while the request's body is sent, until
	// the answer begins, and while the answer's body is read. It leaves a server time to delete
	// 1,000 objects with one request. AWS's SDK for Python has the same limit for all requests.
	stallTimeout = time.Minute
	// A server that copies an object, or completes an upload, may be silent copyFactor times as
	// long. AWS begins its answer at once, and then sends spaces. Other servers copy the bytes
	// before they answer: versitygw took 14 s for 1 GiB on a busy virtual machine. One request
	// copies up to 5 GiB. 15 minutes are enough for 5 GiB at 6 MB/s.
	copyFactor = 15
)

// stallError ends a request that has stalled. The SDK makes the request again.
type stallError struct {
	method string
	limit  time.Duration
}

func (e *stallError) Error() string {
	return fmt.Sprintf("%s: the server has stalled: no byte moved for %v", e.method, e.limit)
}

// Timeout and Temporary make the error a net.Error.
func (e *stallError) Timeout() bool   { return true }
func (e *stallError) Temporary() bool { return true }

var _ net.Error = (*stallError)(nil)

// newStallClient returns a client that limits how long a request may stall.
func newStallClient(limit time.Duration) *stallClient {
	client := awshttp.NewBuildableClient().
		WithDialerOptions(func(d *net.Dialer) { d.Timeout = connectTimeout }).
		WithTransportOptions(func(t *http.Transport) { t.TLSHandshakeTimeout = connectTimeout })
	return &stallClient{client, limit}
}

// stallClient ends requests that stall. It is safe for concurrent use.
type stallClient struct {
	next  aws.HTTPClient
	limit time.Duration
}

// Do sends a request. The caller closes the body of the answer.
func (c *stallClient) Do(req *http.Request) (*http.Response, error) {
	limit := c.limit
	if copies(req) {
		limit *= copyFactor
	}
	ctx, cancel := context.WithCancelCause(req.Context())
	w := &stallWatch{ctx: ctx, cancel: cancel, stalled: &stallError{req.Method, limit}, sending: true}
	w.timer = time.AfterFunc(limit, func() { cancel(w.stalled) })
	watched := req.WithContext(ctx)
	if req.Body != nil && req.Body != http.NoBody {
		watched.Body = &sentBody{req.Body, w}
	}
	res, err := c.next.Do(watched)
	w.answered()
	if err != nil {
		err = w.errorOf(err)
		cancel(nil)
		return res, err
	}
	res.Body = &receivedBody{res.Body, w}
	return res, nil
}

// copies reports whether a request lets the server copy an object, or complete an upload.
func copies(req *http.Request) bool {
	return req.Header.Get("X-Amz-Copy-Source") != "" ||
		req.Method == http.MethodPost && req.URL.Query().Has("uploadId")
}

// stallWatch cancels a request that has stalled.
type stallWatch struct {
	ctx     context.Context // of the request
	cancel  context.CancelCauseFunc
	stalled *stallError

	mu      sync.Mutex // guards the following
	timer   *time.Timer
	sending bool // the answer has not begun
}

// sent notes that a part of the body was handed to the kernel.
func (w *stallWatch) sent() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sending {
		w.timer.Reset(w.stalled.limit)
	}
}

// answered notes that the answer has begun, or that there is none.
func (w *stallWatch) answered() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sending = false
	w.timer.Stop()
}

// errorOf returns the watch's stallError if the watch has cancelled the request, and err otherwise.
func (w *stallWatch) errorOf(err error) error {
	if errors.Is(context.Cause(w.ctx), w.stalled) {
		return w.stalled
	}
	return err
}

// sentBody is the body of a request.
type sentBody struct {
	io.ReadCloser
	watch *stallWatch
}

func (b *sentBody) Read(p []byte) (int, error) {
	b.watch.sent() // the bytes of the previous Read
	return b.ReadCloser.Read(p)
}

// receivedBody is the body of an answer. The time between two Reads does not count.
type receivedBody struct {
	io.ReadCloser
	watch *stallWatch
}

func (b *receivedBody) Read(p []byte) (int, error) {
	b.watch.timer.Reset(b.watch.stalled.limit)
	n, err := b.ReadCloser.Read(p)
	b.watch.timer.Stop()
	if err != nil && err != io.EOF {
		err = b.watch.errorOf(err)
	}
	return n, err
}

func (b *receivedBody) Close() error {
	b.watch.timer.Stop()
	err := b.ReadCloser.Close()
	b.watch.cancel(nil)
	return err
}

// boundedCredentials bounds the wait for credentials, which the SDK may fetch with requests of its
// own.
type boundedCredentials struct {
	aws.CredentialsProvider
	limit time.Duration
}

func (c boundedCredentials) Retrieve(ctx context.Context) (aws.Credentials, error) {
	ctx, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	return c.CredentialsProvider.Retrieve(ctx)
}

package hub

import (
	"io"
	"net/http"
	"time"
)

// stallTimeout is how long a client may take to send or to receive the next
// piece. A slow one gets there; a silent one must not hold a connection, a file
// and a place among the hub's for ever.
const stallTimeout = time.Minute

// stallPiece is what has to pass within the timeout when a file is sent, in
// bytes.
const stallPiece = 1 << 20

// unstalled makes requests fail whose clients stall. While next works and
// neither reads nor writes, there is no limit.
func unstalled(next http.Handler, timeout time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		// Not all writers know deadlines (those of tests do not), so what the
		// controller says is of no interest.
		control := http.NewResponseController(w)
		steady := &steadyWriter{w, control, timeout}
		steady.deadline(0) // that of an earlier request on this connection
		defer func() {     // the server still drains and flushes
			_ = control.SetReadDeadline(time.Now().Add(timeout))
			steady.deadline(timeout)
		}()
		if req.Body != nil && req.Body != http.NoBody {
			req.Body = &steadyBody{req.Body, control, timeout}
		}
		next.ServeHTTP(steady, req)
	})
}

type steadyBody struct {
	io.ReadCloser
	control *http.ResponseController
	timeout time.Duration
}

// Read reads within the timeout.
func (b *steadyBody) Read(p []byte) (int, error) {
	_ = b.control.SetReadDeadline(time.Now().Add(b.timeout))
	defer func() { _ = b.control.SetReadDeadline(time.Time{}) }()
	return b.ReadCloser.Read(p)
}

type steadyWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration
}

// deadline sets when writing has to be done; 0: whenever.
func (w *steadyWriter) deadline(after time.Duration) {
	var at time.Time
	if after > 0 {
		at = time.Now().Add(after)
	}
	_ = w.control.SetWriteDeadline(at)
}

// Unwrap is how a ResponseController finds the writer below.
func (w *steadyWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Write writes within the timeout.
func (w *steadyWriter) Write(p []byte) (int, error) {
	w.deadline(w.timeout)
	defer w.deadline(0)
	return w.ResponseWriter.Write(p)
}

// FlushError flushes within the timeout.
func (w *steadyWriter) FlushError() error {
	w.deadline(w.timeout)
	defer w.deadline(0)
	return w.control.Flush()
}

// ReadFrom writes a file piece by piece, each of which the kernel copies.
func (w *steadyWriter) ReadFrom(from io.Reader) (n int64, err error) {
	defer w.deadline(0)
	// The kernel copies from a file, or from a part of one, not from part of a part.
	whole, cut := from.(*io.LimitedReader)
	for {
		piece := &io.LimitedReader{R: from, N: stallPiece}
		if cut {
			piece.R, piece.N = whole.R, min(whole.N, stallPiece)
		}
		size := piece.N
		w.deadline(w.timeout)
		k, err := io.Copy(w.ResponseWriter, piece)
		n += k
		if cut {
			whole.N -= k
		}
		if err != nil || k < size || size == 0 {
			return n, err
		}
	}
}

var _ io.ReaderFrom = (*steadyWriter)(nil)

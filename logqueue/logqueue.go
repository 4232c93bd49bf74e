// Package logqueue promises a log that never makes its writers wait: a handler puts lines
// into a queue, and one goroutine writes them. When whoever reads the log does not, and the
// queue is full, lines are dropped and counted; the log says how many once it is read again.
//
// It risks the last lines: those in the queue are lost when the process crashes or is killed.
package logqueue

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxLines and maxBytes bound what waits to be written.
	maxLines = 1024
	maxBytes = 1 << 20
)

// Handler is a slog.Handler whose lines are queued. It is safe for concurrent use.
type Handler struct {
	slog.Handler
	queue *queue
}

// New returns a handler that writes to out, as the handlers that format returns do. Close
// ends its goroutine.
func New(out io.Writer, format func(io.Writer) slog.Handler) *Handler {
	q := &queue{out: out, direct: slog.New(format(out)), lines: make(chan []byte, maxLines), done: make(chan struct{})}
	go q.run()
	return &Handler{format(q), q}
}

// WithAttrs implements slog.Handler.
func (h *Handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &Handler{h.Handler.WithAttrs(attrs), h.queue}
}

// WithGroup implements slog.Handler.
func (h *Handler) WithGroup(name string) slog.Handler {
	return &Handler{h.Handler.WithGroup(name), h.queue}
}

// Close waits until what is queued is written, or limit has passed. Later lines are
// dropped.
func (h *Handler) Close(limit time.Duration) {
	h.queue.close()
	select {
	case <-h.queue.done:
	case <-time.After(limit):
	}
}

// Dropped returns how many lines of a log were dropped, if its handler is a Handler.
func Dropped(log *slog.Logger) int64 {
	if h, ok := log.Handler().(*Handler); ok {
		return h.queue.dropped.Load()
	}
	return 0
}

// queue is a writer that does not wait.
type queue struct {
	out    io.Writer
	direct *slog.Logger // to out; for run alone
	lines  chan []byte
	done   chan struct{} // closed when run has ended

	dropped atomic.Int64 // in all
	held    atomic.Int64 // bytes that wait

	mu     sync.Mutex // guards closed, and that nobody sends afterwards
	closed bool
}

// Write queues a line, or drops it. It never fails.
func (q *queue) Write(line []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || q.held.Load()+int64(len(line)) > maxBytes {
		q.dropped.Add(1)
		return len(line), nil
	}
	select {
	case q.lines <- bytes.Clone(line):
		q.held.Add(int64(len(line)))
	default:
		q.dropped.Add(1)
	}
	return len(line), nil
}

// run writes lines until the queue is closed and empty.
func (q *queue) run() {
	defer close(q.done)
	var reported int64
	for line := range q.lines {
		_, err := q.out.Write(line)
		q.held.Add(-int64(len(line)))
		if err != nil {
			q.dropped.Add(1)
			continue
		}
		if dropped := q.dropped.Load(); dropped > reported {
			q.direct.LogAttrs(context.Background(), slog.LevelWarn, "lines of this log were dropped, as nobody read it", slog.Int64("lines", dropped-reported))
			reported = dropped
		}
	}
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.closed = true
		close(q.lines)
	}
}

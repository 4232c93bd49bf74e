package many

import (
	"context"
	"fmt"
	"time"

	"lighter/format/trace"
)

const (
	// piece is the length of the largest replayed read: the kernel's default read-ahead. A read of
	// a trace may be longer, as it stands for several adjacent reads; it is replayed in pieces.
	piece = 128 << 10
	// readTimeout bounds a read, as on a node.
	readTimeout = 100 * time.Second
)

// reader is a device.
type reader interface {
	ReadAt(ctx context.Context, dst []byte, offset int64) (missed int64, err error)
}

// replay repeats the reads of a trace one after the other. After each answer it pauses for the time
// between the two reads in the trace. This time includes how long the first read took in the
// recorded start. If its bytes were already on the recording node, the pause is hardly more than
// the workload's own time between the reads. replay appends the duration of each read, in seconds,
// to took.
func replay(ctx context.Context, d reader, t trace.Trace, took []float64) ([]float64, error) {
	buffer := make([]byte, piece)
	at := time.Duration(0)
	for _, r := range t.Reads {
		if !pause(ctx, r.At-at) {
			return took, context.Cause(ctx)
		}
		at = r.At
		for done := int64(0); done < r.Length; done += piece {
			dst := buffer[:min(piece, r.Length-done)]
			begin := time.Now()
			if err := read(ctx, d, dst, r.Offset+done); err != nil {
				return took, fmt.Errorf("read %d bytes at %d: %w", len(dst), r.Offset+done, err)
			}
			took = append(took, time.Since(begin).Seconds())
		}
	}
	return took, nil
}

func read(ctx context.Context, d reader, dst []byte, offset int64) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	_, err := d.ReadAt(ctx, dst, offset)
	return err
}

// pause waits, and reports whether the time has passed before ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

package conversion

import (
	"context"
	"io"
	"os"
	"sync"

	"lighter/format/stargz"
)

// write writes a tar as a layer.
func (c *converter) write(ctx context.Context, out io.Writer, archive io.ReaderAt, size int64,
	name string) (stargz.Written, error) {
	report := c.reporter("write", name, size)
	p := &parallel{ctx: ctx, encode: c.encode, places: make(chan struct{}, c.Jobs), report: report}
	defer p.running.Wait()
	w, err := stargz.Write(ctx, out, archive, size, p.begin,
		stargz.Options{Format: c.Format.stargz(), Prioritized: c.files(), Pending: c.Jobs * pendingPerJob})
	if err == nil {
		report(size)
	}
	return w, err
}

// parallel compresses members at a time, as many as it has places.
type parallel struct {
	ctx     context.Context
	encode  func(plain []byte) ([]byte, error)
	places  chan struct{}
	running sync.WaitGroup
	report  func(n int64)
}

// member is a member that was compressed.
type member struct {
	b   []byte
	err error
}

// begin begins to compress a member. stargz.Write bounds how many have begun.
func (p *parallel) begin(plain []byte) func() ([]byte, error) {
	done := make(chan member, 1)
	p.running.Go(func() {
		select {
		case p.places <- struct{}{}:
		case <-p.ctx.Done():
			done <- member{err: context.Cause(p.ctx)}
			return
		}
		b, err := p.encode(plain)
		<-p.places
		done <- member{b, err}
	})
	return func() ([]byte, error) {
		m := <-done
		p.report(int64(len(plain)))
		return m.b, m.err
	}
}

// unnamed returns a new file that has no name, so that it ends with the process.
func unnamed(dir string) (*os.File, error) {
	f, err := os.CreateTemp(dir, "lighter-export-")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

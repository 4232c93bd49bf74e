package record_test

import (
	"fmt"

	"lighter/format/chunk"
	"lighter/format/trace"
	"lighter/node/device"
	"lighter/node/record"
)

// observable is a record.Device. The example calls its observer itself.
type observable struct{ observer device.Observer }

func (o *observable) Observe(observer device.Observer) (stop func()) {
	o.observer = observer
	return func() { o.observer = nil }
}

// A recorder passes on the trace of a start when the start is over. In this example, the start is
// over when its tree is unmounted.
func Example() {
	recorder := record.New(true, func(t trace.Trace) {
		for _, r := range t.Reads {
			fmt.Printf("%d bytes at %d\n", r.Length, r.Offset)
		}
	})
	tree, d := chunk.Sum([]byte("tree")), &observable{}
	recorder.BeginStart(tree, d)
	d.observer.Observe(device.Read{Offset: 0, Length: 128 << 10})
	d.observer.Observe(device.Read{Offset: 1 << 20, Length: 4096})
	recorder.Unmounted(tree)
	// Output:
	// 131072 bytes at 0
	// 4096 bytes at 1048576
}

package mount

import (
	"context"
	"fmt"

	"lighter/format/chunk"
	"lighter/node/device"
)

// Device opens and verifies a tree that is on this machine as Mount does, for
// whoever reads its device in this process: the kernel is told nothing of it. What its
// start needs is on its way. The caller calls close when no read is any more.
func (t *Trees) Device(ctx context.Context, tree chunk.ID) (d *device.Device, close func(), err error) {
	var m *served
	err = t.useWhole(ctx, tree, func() error {
		unlock, err := t.locks.lockOrCancel(ctx, tree)
		if err != nil {
			return err
		}
		defer unlock()
		m, err = t.openVerified(ctx, tree)
		return err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("open tree %s: %w", tree.Short(), err)
	}
	m.locating.begin()
	m.device.Begin()
	return m.device, m.close, nil
}

package mirror

import (
	"context"
	"fmt"
	"os"

	"lighter/wire"
)

// reportHeld reports to the hub all trees in the directory, also those that earlier runs copied.
func (m *Mirror) reportHeld(ctx context.Context) error {
	trees, err := m.files.Trees(m.client.Domain())
	if err != nil {
		return err
	}
	if len(trees) > wire.MaxHeld {
		return fmt.Errorf("the mirror has %d trees, a report can have at most %d", len(trees), wire.MaxHeld)
	}
	id, err := m.files.Holder()
	if err != nil {
		return err
	}
	name, _ := os.Hostname() // it is for users only
	_, err = m.client.SendHeld(ctx, wire.Held{Holder: id, Kind: wire.HolderMirror, Name: name, Trees: trees})
	return err
}

package export

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"lighter/format/chunk"
	"lighter/wire"
)

// state says what a mirror has. It is a file of the mirror, so it cannot be about another one.
type state struct {
	Version int
	Hub     string    `json:",omitempty"` // the identity of the catalog that the mirror is a copy of
	Holder  string    // the mirror's ID as a holder; see hold
	Holders int       // the largest number of IDs that it has used
	Checked time.Time // when a run last looked for each file
	// Files has the files by their paths, and packs by the paths of their directories. A value
	// identifies the file's contents: the digest of the locations, for example. It is empty if the
	// file may be missing: a run was about to write it.
	Files map[string]string
}

const stateVersion = 1

// isComplete is the value of a file whose name identifies its contents.
const isComplete = "complete"

// statePath returns the path of the state of a domain's mirror.
func statePath(domain string) string { return "/.export/" + domain }

// readState reads the state. If the mirror has none, it is a new one.
func readState(ctx context.Context, t target, domain string) (s state, err error) {
	b, err := t.Read(ctx, statePath(domain))
	if errors.Is(err, fs.ErrNotExist) {
		return state{Version: stateVersion, Holder: rand.Text(), Files: map[string]string{}}, nil
	}
	if err != nil {
		return s, err
	}
	return decodeState(b, domain)
}

func decodeState(b []byte, domain string) (s state, err error) {
	if err = json.Unmarshal(b, &s); err == nil && (s.Version != stateVersion || s.Files == nil ||
		!wire.IsHolderID(s.Holder)) {
		err = fmt.Errorf("it has version %d, want %d", s.Version, stateVersion)
	}
	if err != nil {
		return s, fmt.Errorf("read the mirror: %s, which says what the mirror has, is damaged or of a newer hub; "+
			"to begin anew, empty the mirror: %w", statePath(domain), err)
	}
	return s, nil
}

// claim makes the mirror a copy of this hub's catalog. It fails if the mirror is a copy of another
// one: the hub may have been started with a wrong or empty database, and would remove everything
// that nodes read. A mirror of an earlier hub has no identity, and gets this one.
func (r *run) claim(ctx context.Context) error {
	hub, err := r.Catalog.HubID(ctx)
	if err != nil {
		return err
	}
	if r.state.Hub != "" && r.state.Hub != hub {
		return fmt.Errorf("the mirror is a copy of another catalog, and stays as it is: does the hub use the right "+
			"database, and the right place to export to? If it has a new database on purpose, empty the mirror "+
			"(identity %s in its %s, %s in the database)", r.state.Hub, statePath(r.Domain), hub)
	}
	r.state.Hub = hub
	return nil
}

// save writes the state, unless it is the one that was read or written last.
func (r *run) save(ctx context.Context) error {
	b, err := json.Marshal(r.state)
	if err != nil {
		return err
	}
	sum := chunk.Sum(b)
	if sum == r.saved {
		return nil
	}
	if err := r.target.Write(ctx, statePath(r.Domain), bytes.NewReader(append(b, '\n'))); err != nil {
		return err
	}
	r.saved = sum
	return nil
}

package chain

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/node/state"
)

// path returns where a chain's statement is kept, or "" for what is not a
// chainID.
func (r *Resolver) path(chain string) string {
	hex, ok := strings.CutPrefix(chain, "sha256:")
	if _, err := chunk.ParseID(hex); !ok || err != nil {
		return ""
	}
	return filepath.Join(r.dir, hex)
}

// load reads the statements that a former run has kept. They are verified again:
// the pinned keys may have changed for a reason.
func (r *Resolver) load() error {
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return fmt.Errorf("open the chains: %w", err)
	}
	for _, entry := range entries {
		chain := "sha256:" + entry.Name()
		if r.path(chain) == "" {
			continue // of a Replace that was interrupted
		}
		s, err := r.read(chain)
		if err != nil {
			r.log.Warn("a statement on disk is refused; its chain counts as not here", "chain", chain, "cause", err)
			continue
		}
		r.use(chain).statement = s
	}
	return nil
}

func (r *Resolver) read(chain string) (*index.Statement, error) {
	b, err := os.ReadFile(r.path(chain))
	if err != nil {
		return nil, err
	}
	var s index.Statement
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, err
	}
	return &s, s.Verify(chain, r.keys.pinned())
}

// keep puts a verified statement on disk and into memory, for a caller that holds its chain. Its
// tree cannot go from then on, or is gone before keep returns.
func (r *Resolver) keep(s *index.Statement) error {
	path := r.path(s.Chain)
	if path == "" {
		return fmt.Errorf("%q is not a chainID", s.Chain)
	}
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	r.held.Lock()
	defer r.held.Unlock()
	for r.leaving[s.Tree] || r.writing[s.Chain] {
		r.left.Wait()
	}
	if u := r.use(s.Chain); u.statement != nil && u.statement.Tree == s.Tree {
		return nil
	}
	r.writing[s.Chain] = true
	r.held.Unlock()
	err = state.Replace(path, b)
	r.held.Lock()
	for r.leaving[s.Tree] { // since
		r.left.Wait()
	}
	delete(r.writing, s.Chain)
	r.left.Broadcast()
	if err != nil {
		return fmt.Errorf("keep the statement of chain %s: %w", s.Chain, err)
	}
	r.use(s.Chain).statement = s
	return nil
}

func (r *Resolver) removeStatement(chain string) error {
	err := os.Remove(r.path(chain))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// sweepFiles removes the files that hold no statement; held is held.
func (r *Resolver) sweepFiles() {
	entries, err := os.ReadDir(r.dir)
	for _, entry := range entries {
		if u := r.uses["sha256:"+entry.Name()]; u == nil || u.statement == nil {
			err = errors.Join(err, os.Remove(filepath.Join(r.dir, entry.Name())))
		}
	}
	if err != nil {
		r.log.Warn("sweep the chains", "cause", err)
	}
}

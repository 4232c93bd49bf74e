package resolver

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"lighter/durable"
	"lighter/format/chunk"
	"lighter/format/index"
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
// the pinned keys may have changed for a reason. One that is refused counts for no new
// claim, and what holds its chain keeps the tree.
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
		u := r.use(chain)
		var err error
		if u.statement, err = r.read(chain); err != nil {
			r.log.Warn("a statement on disk is refused: nothing new is claimed by it", "chain", chain, "cause", err)
			u.refused = &refusal{cause: err}
		}
	}
	return nil
}

// read returns the statement about a chain that is on disk, and what is wrong with it: it
// is returned also if it cannot be verified, but not if it says nothing of the chain.
func (r *Resolver) read(chain string) (*index.Statement, error) {
	b, err := os.ReadFile(r.path(chain))
	if err != nil {
		return nil, err
	}
	var s index.Statement
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, fmt.Errorf("read %s: %w", r.path(chain), err)
	}
	err = s.Verify(chain, r.keys.pinned())
	if s.Chain != chain || s.Tree.IsZero() {
		return nil, cmp.Or(err, errors.New("the statement names no tree"))
	}
	return &s, err
}

// keep puts a verified statement on disk and into memory, for a caller that holds its chain. Its
// tree cannot go from then on, or is gone before keep returns. The error wraps errOtherTree if the
// chain has another tree on this machine, or may have: what holds the chain may be using it.
func (r *Resolver) keep(s *index.Statement) error {
	if r.path(s.Chain) == "" {
		return fmt.Errorf("%q is not a chainID", s.Chain)
	}
	r.held.Lock()
	defer r.held.Unlock()
	for r.leaving[s.Tree] || r.writing[s.Chain] {
		r.left.Wait()
	}
	u := r.use(s.Chain)
	if u.refused == nil && u.statement != nil && u.statement.Tree == s.Tree {
		return nil
	}
	if err := r.mayKeep(u, s); err != nil {
		return fmt.Errorf("keep the statement of chain %s: %w", s.Chain, err)
	}
	return r.write(s)
}

// write puts a statement in the place of what is on disk about its chain, which somebody holds
// and for which nobody writes now; held is held, but not meanwhile.
func (r *Resolver) write(s *index.Statement) error {
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	r.writing[s.Chain] = true
	r.held.Unlock()
	err = durable.Replace(r.path(s.Chain), b)
	r.held.Lock()
	for r.leaving[s.Tree] { // since
		r.left.Wait()
	}
	delete(r.writing, s.Chain)
	r.left.Broadcast()
	if err != nil {
		return fmt.Errorf("keep the statement of chain %s: %w", s.Chain, err)
	}
	u := r.use(s.Chain)
	if u.refused != nil {
		r.log.Info("a statement that was refused has been fetched again", "chain", s.Chain, "tree", s.Tree.Short())
	}
	u.statement, u.refused = s, nil
	return nil
}

// errOtherTree says that a chain has another tree on this machine than a statement names.
var errOtherTree = errors.New("it is about another tree than the one on this machine")

// mayKeep says why a statement cannot take the place of what is on disk: the tree that is
// on this machine would lose its name, and the next Sweep would remove it; held is held.
func (r *Resolver) mayKeep(u *use, s *index.Statement) error {
	switch {
	case u.statement != nil && u.statement.Tree == s.Tree:
		return nil
	case u.statement != nil && r.trees.Has(u.statement.Tree):
		return fmt.Errorf("%w: %s, not %s", errOtherTree, s.Tree.Short(), u.statement.Tree.Short())
	case u.refused == nil:
		return nil
	}
	trees, err := r.orphans()
	if err != nil {
		return err
	}
	if len(trees) > 0 && !slices.Contains(trees, s.Tree) {
		return fmt.Errorf("%w, as far as that is known: %s", errOtherTree, s.Tree.Short())
	}
	return nil
}

func (r *Resolver) removeStatement(chain string) error {
	err := os.Remove(r.path(chain))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// sweepFiles removes the files that belong to no chain; held is held.
func (r *Resolver) sweepFiles() {
	entries, err := os.ReadDir(r.dir)
	for _, entry := range entries {
		if u := r.uses["sha256:"+entry.Name()]; u == nil || u.statement == nil && u.refused == nil {
			err = errors.Join(err, os.Remove(filepath.Join(r.dir, entry.Name())))
		}
	}
	if err != nil {
		r.log.Warn("sweep the chains", "cause", err)
	}
}

package resolver

import (
	"cmp"
	"crypto/ed25519"
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

// path returns the file of a chain's statement, or "" if chain is no chainID.
func (c *Chains) path(chain string) string {
	hex, ok := strings.CutPrefix(chain, "sha256:")
	if _, err := chunk.ParseID(hex); !ok || err != nil {
		return ""
	}
	return filepath.Join(c.dir, hex)
}

// load reads the statements that an earlier daemon kept, and verifies them again: the pinned keys
// may have changed.
func (c *Chains) load() error {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		chain := "sha256:" + entry.Name()
		if c.path(chain) == "" {
			continue // a file that an interrupted durable.Replace has left
		}
		s := c.state(chain)
		var err error
		if s.statement, err = c.read(chain); err != nil {
			c.log.Warn("refused the statement of a chain on disk: no new pull uses it", "chain", chain, "err", err)
			s.refused = &refusal{cause: err}
		}
	}
	return nil
}

// read reads and verifies a chain's statement. A statement that cannot be verified is returned with
// the error, unless it is about another chain or names no tree.
func (c *Chains) read(chain string) (*index.Statement, error) {
	b, err := os.ReadFile(c.path(chain))
	if err != nil {
		return nil, err
	}
	var s index.Statement
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, fmt.Errorf("read %s: %w", c.path(chain), err)
	}
	err = s.Verify(chain, c.keys.believed())
	if s.Chain != chain || s.Tree.IsZero() {
		return nil, cmp.Or(err, errors.New("the statement names no tree"))
	}
	return &s, err
}

// keep puts a verified statement on disk and into memory, if it is better than the chain's current
// statement (isBetter). The caller holds the chain. When keep returns, the tree is not being
// removed, and no removal begins while the chain is held. The error wraps errOtherTree if holders
// of the chain use, or may use, another tree.
func (c *Chains) keep(s *index.Statement) error {
	if c.path(s.Chain) == "" {
		return fmt.Errorf("%q is not a chainID", s.Chain)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.removing[s.Tree] || c.writing[s.Chain] {
		c.finished.Wait()
	}
	state := c.state(s.Chain)
	if !c.isBetter(s, state) {
		return nil
	}
	if err := c.checkReplace(state, s); err != nil {
		return fmt.Errorf("keep the statement of chain %s: %w", s.Chain, err)
	}
	return c.write(s)
}

// isBetter reports whether a chain's statement on disk should be replaced by s: it is missing or
// refused, names another tree, or lacks the signature of a pinned key that has signed s. mu is
// held.
func (c *Chains) isBetter(s *index.Statement, state *chainState) bool {
	old := state.statement
	if state.refused != nil || old == nil || old.Tree != s.Tree {
		return true
	}
	signsOnlyNew := func(key ed25519.PublicKey) bool { return s.SignedBy(key) && !old.SignedBy(key) }
	return slices.ContainsFunc(c.keys.believed(), signsOnlyNew)
}

// write replaces a chain's statement on disk. The chain is held, and its statement is not being
// written by another call. mu is held, except during the write.
func (c *Chains) write(s *index.Statement) error {
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	c.writing[s.Chain] = true
	c.mu.Unlock()
	err = durable.Replace(c.path(s.Chain), b)
	c.mu.Lock()
	for c.removing[s.Tree] { // the removal may have begun during the write
		c.finished.Wait()
	}
	delete(c.writing, s.Chain)
	c.finished.Broadcast()
	if err != nil {
		return fmt.Errorf("keep the statement of chain %s: %w", s.Chain, err)
	}
	state := c.state(s.Chain)
	if state.refused != nil {
		c.log.Info("replaced a refused statement", "chain", s.Chain, "tree", s.Tree.Short())
	}
	state.statement, state.refused = s, nil
	return nil
}

var errOtherTree = errors.New("it is about another tree than the one on this machine")

// checkReplace fails if a new statement must not replace the one on disk, because then no statement
// would name the chain's tree on this machine, and the next Sweep would remove this tree. mu is
// held.
func (c *Chains) checkReplace(state *chainState, s *index.Statement) error {
	switch {
	case state.statement != nil && state.statement.Tree == s.Tree:
		return nil
	case state.statement != nil && c.trees.Has(state.statement.Tree):
		return fmt.Errorf("%w: %s, not %s", errOtherTree, s.Tree.Short(), state.statement.Tree.Short())
	case state.refused == nil:
		return nil
	}
	trees, err := c.orphans()
	if err != nil {
		return err
	}
	if len(trees) > 0 && !slices.Contains(trees, s.Tree) {
		return fmt.Errorf("%w, as far as that is known: %s", errOtherTree, s.Tree.Short())
	}
	return nil
}

func (c *Chains) removeStatement(chain string) error {
	err := os.Remove(c.path(chain))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// sweepFiles removes the files that belong to no chain; mu is held.
func (c *Chains) sweepFiles() {
	entries, err := os.ReadDir(c.dir)
	for _, entry := range entries {
		if s := c.states["sha256:"+entry.Name()]; s == nil || s.statement == nil && s.refused == nil {
			err = errors.Join(err, os.Remove(filepath.Join(c.dir, entry.Name())))
		}
	}
	if err != nil {
		c.log.Warn("cannot remove statements that belong to no chain", "err", err)
	}
}

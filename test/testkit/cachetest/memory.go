package cachetest

import (
	"bytes"
	"sync"

	"lighter/format/chunk"
)

// Memory is a store.Cache in memory, without a bound.
type Memory struct {
	mu     sync.Mutex
	chunks map[chunk.ID][]byte
}

// NewMemory returns an empty Memory.
func NewMemory() *Memory { return &Memory{chunks: map[chunk.ID][]byte{}} }

// Read implements store.Cache.
func (m *Memory) Read(ref chunk.Ref, offset int, dst []byte) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	plain, ok := m.chunks[ref.ID]
	return ok && copy(dst, plain[offset:]) == len(dst)
}

// Has implements store.Cache.
func (m *Memory) Has(id chunk.ID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.chunks[id] != nil
}

// Put implements store.Cache.
func (m *Memory) Put(ref chunk.Ref, plain []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.chunks[ref.ID] = bytes.Clone(plain)
}

// Load implements store.Cache.
func (*Memory) Load([]chunk.Ref) {}

// IsLoading implements store.Cache.
func (*Memory) IsLoading() bool { return false }

package cachetest

import (
	"testing"

	"lighter/store"
)

func TestMemory(t *testing.T) {
	Run(t, func(*testing.T) store.Cache { return NewMemory() })
}

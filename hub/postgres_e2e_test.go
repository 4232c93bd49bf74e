//go:build e2e

package hub_test

import (
	"os"
	"testing"

	"lighter/test/testkit/postgres"
)

// TestMain runs all tests of hubs with catalogs in PostgreSQL.
func TestMain(m *testing.M) {
	server, err := postgres.New()
	if err != nil {
		panic(err)
	}
	newCatalog = func(t *testing.T) string { return server.Database(t) }
	status := m.Run()
	server.Close()
	os.Exit(status)
}

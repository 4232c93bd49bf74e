//go:build e2e

package catalog_test

import (
	"testing"

	"lighter/hub/catalog"
	"lighter/test/testkit/catalogtest"
	"lighter/test/testkit/postgres"
)

func TestConformanceOfPostgres(t *testing.T) {
	server := postgres.Start(t)
	catalogtest.Test(t, func(t *testing.T) *catalog.Catalog { return catalogtest.Open(t, server.Database(t)) })
}

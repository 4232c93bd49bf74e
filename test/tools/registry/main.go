// Command registry is distribution's registry with the one storage driver that
// the tests use. The others, for clouds, take a minute of two processors to
// compile.
package main

import (
	"os"

	"github.com/distribution/distribution/v3/registry"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/filesystem"
)

func main() {
	if err := registry.RootCmd.Execute(); err != nil {
		os.Exit(1) // it has said why
	}
}

package durable_test

import (
	"fmt"
	"os"
	"path/filepath"

	"lighter/durable"
)

// Replace leaves the old contents or the new ones, whatever the moment of a crash.
func ExampleReplace() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "state.json")
	for _, text := range []string{"first", "second"} {
		if err := durable.Replace(path, []byte(text)); err != nil {
			panic(err)
		}
	}
	b, _ := os.ReadFile(path)
	fmt.Println(string(b))
	// Output: second
}

// Publish gives a directory its name once its contents are complete.
func ExamplePublish() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	unfinished, name := filepath.Join(dir, "new"), filepath.Join(dir, "tree")
	if err := os.Mkdir(unfinished, 0o700); err != nil {
		panic(err)
	}
	// … write and sync the files in it …
	if err := durable.Publish(unfinished, name); err != nil {
		panic(err)
	}
	_, err = os.Stat(name)
	fmt.Println(err)
	// Output: <nil>
}

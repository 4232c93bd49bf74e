// Command helm prints what the chart in DIR renders as a release, with the values on its standard input:
//
//	helm DIR RELEASE
package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"lighter/test/tools/manifests"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "helm:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return errors.New("usage: helm DIR RELEASE")
	}
	values, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	text, err := manifests.Helm(args[0], args[1], string(values))
	if err != nil {
		return err
	}
	_, err = fmt.Print(text)
	return err
}

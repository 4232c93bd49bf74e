//go:build !man

package main

import "lighter/cmd/command"

func main() { command.Main(rootCommand(), exitCode) }

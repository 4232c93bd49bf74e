package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"lighter/cmd/command"
)

func completionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "completion SHELL",
		Short: "Print the script that lets a shell complete commands and flags: bash, zsh or fish",
		Long: `Print the script that lets a shell complete commands and flags: for bash, zsh or fish.
That of bash needs the package bash-completion. Lighter's packages have all three.`,
		Example: `  lighter completion bash > /etc/bash_completion.d/lighter
  lighter completion zsh > "${fpath[1]}/_lighter"
  lighter completion fish > ~/.config/fish/completions/lighter.fish`,
		Args:                  command.Exactly("SHELL"),
		ValidArgs:             []string{"bash", "zsh", "fish"},
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(os.Stdout, true)
			case "zsh":
				return root.GenZshCompletion(os.Stdout)
			case "fish":
				return root.GenFishCompletion(os.Stdout, true)
			}
			return command.Usage(fmt.Errorf("there is no completion for the shell %q: name bash, zsh or fish", args[0]))
		},
	}
}

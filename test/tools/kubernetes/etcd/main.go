// Command etcd is etcd's server. The server's own main package lies at the root of its module, so go build would name
// the program "server".
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }

// Command etcd is the etcd server, and by the name it is called with also etcdctl and etcdutl: three programs that
// share most of their code and so most of their size.
package main

import (
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/etcdctl/v3/ctlv3"
	"go.etcd.io/etcd/etcdutl/v3/etcdutl"
	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	switch filepath.Base(os.Args[0]) {
	case "etcdctl":
		ctlv3.MustStart()
	case "etcdutl":
		if err := offline().Execute(); err != nil {
			os.Exit(1)
		}
	default:
		etcdmain.Main(os.Args)
	}
}

// offline is the root of etcdutl: the module exports its commands but not the root that joins them.
func offline() *cobra.Command {
	root := &cobra.Command{
		Use:           "etcdutl",
		Short:         "Work on etcd data files while no server uses them",
		SilenceUsage:  true,
		SilenceErrors: false,
	}
	root.PersistentFlags().StringVarP(&etcdutl.OutputFormat, "write-out", "w", "simple", "output format: fields, json, protobuf, simple, table")
	root.AddCommand(
		etcdutl.NewDefragCommand(),
		etcdutl.NewSnapshotCommand(),
		etcdutl.NewHashKVCommand(),
		etcdutl.NewMigrateCommand(),
		etcdutl.NewVersionCommand(),
	)
	return root
}

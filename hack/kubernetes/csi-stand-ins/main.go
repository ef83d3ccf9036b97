// Stands in for two images of Kubernetes' storage suite that are in no Go module: hostpathplugin and
// csi-node-driver-registrar. It takes their flags, as far as the suite gives them.
//
//	csi-stand-ins hostpathplugin             a driver that the suite brings along, which logs its calls
//	csi-stand-ins hostpathplugin -proxy-endpoint=tcp://:9000
//	                                         forwards to a driver inside the suite
//	csi-stand-ins csi-node-driver-registrar  registers a driver with the kubelet
package main

import (
	"log"
	"os"
)

func main() {
	commands := map[string]func([]string) error{
		"hostpathplugin":            hostpathplugin,
		"csi-node-driver-registrar": registrar,
	}
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		log.Fatalf("usage: %s hostpathplugin|csi-node-driver-registrar FLAGS...", os.Args[0])
	}
	if err := commands[os.Args[1]](os.Args[2:]); err != nil {
		log.Fatal(err)
	}
}

// Command clientgo is a peer for tests: an ordinary client-go program that the server under test must satisfy.
//
//	clientgo follow KUBECONFIG NODE        shared informers over protobuf and over JSON, facts on request
//	clientgo churn KUBECONFIG SEED MAKE N  make slices (protobuf bodies), then N random changes
//
// Whether informers begin with a streaming list is client-go's own switch: KUBE_FEATURE_WatchListClient.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "clientgo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 3 && args[0] == "follow":
		return follow(ctx, args[1], args[2], os.Stdin, os.Stdout)
	case len(args) == 5 && args[0] == "churn":
		numbers := make([]int, 0, 3)
		for _, text := range args[2:] {
			number, err := strconv.Atoi(text)
			if err != nil {
				return err
			}
			numbers = append(numbers, number)
		}
		return churn(ctx, args[1], int64(numbers[0]), numbers[1], numbers[2])
	}
	return fmt.Errorf("usage: clientgo follow KUBECONFIG NODE | clientgo churn KUBECONFIG SEED MAKE CHANGES")
}

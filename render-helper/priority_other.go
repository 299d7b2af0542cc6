//go:build !linux

package main

func takeShortTurns() {}

func giveWay() {}

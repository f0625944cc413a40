// Starts the page's two halves.

import "./shared/tabs.js";
import { startChat } from "./chat/chat.js";
import { startView } from "./engine/live.js";

startChat();
startView();
